"""Moments of a session that somebody looks at: made when asked for, kept in the local cache beside the index."""

import asyncio
import secrets
import shutil
from pathlib import Path

import msgspec

from rayhistory.errors import DamagedIndex, FoldFailed, NotIndexedYet
from rayhistory.events.tables import TABLES
from rayhistory.index.asof import DAMAGED, AsOfJob
from rayhistory.index.cache import IndexCache
from rayhistory.index.child import child_process
from rayhistory.index.derive import merged_file
from rayhistory.index.manifest import MERGED, Manifest
from rayhistory.index.places import Places
from rayhistory.index.query import OpenIndex
from rayhistory.layout import SessionRef
from rayhistory.settings import Settings


class Moments:
    def __init__(self, settings: Settings, cache: IndexCache, places: Places) -> None:
        self._settings = settings
        self._cache = cache
        self._places = places
        self._making: dict[Path, asyncio.Task[None]] = {}

    async def open(self, ref: SessionRef, manifest: Manifest, ns: int, patience: float) -> OpenIndex:
        folder = self._cache.folder(ref, f"{manifest.build}@{ns}")
        served = {name: sizes for name, sizes in manifest.files.items() if not name.startswith(MERGED)}
        as_it_was = msgspec.structs.replace(manifest, files=served, closing=None, last_ns=ns)

        async def fetch(name: str, parts: range, *, again: bool) -> list[Path]:
            paths = [folder / f"{name}.{part}.parquet" for part in parts]
            if again or not all(path.exists() for path in paths):
                await self._made(ref, manifest, folder, ns, patience)
            return paths

        return OpenIndex(as_it_was, fetch)

    async def _made(self, ref: SessionRef, manifest: Manifest, folder: Path, ns: int, patience: float) -> None:
        """Once for all who wait; whoever does not want to wait longer finds it the next time."""
        if folder not in self._making:
            self._making[folder] = asyncio.create_task(self._make(ref, manifest, folder, ns))
            self._making[folder].add_done_callback(lambda _: self._making.pop(folder))
        try:
            await asyncio.wait_for(asyncio.shield(self._making[folder]), patience)
        except TimeoutError:
            raise NotIndexedYet("the session is put back to that moment") from None

    async def _make(self, ref: SessionRef, manifest: Manifest, folder: Path, ns: int) -> None:
        for again in (False, True):
            merged = {
                table.name: await self._cache.table(ref, manifest, merged_file(table.name), again=again)
                for table in TABLES
            }
            try:
                async with self._places.taken(manifest.counts.size_bytes):
                    await self._put_back(ref, manifest, merged, folder, ns)
            except DamagedIndex:
                if again:
                    raise
            else:
                return

    async def _put_back(
        self, ref: SessionRef, manifest: Manifest, tables: dict[str, list[Path]], folder: Path, ns: int
    ) -> None:
        """The tables appear all at once; whoever reads those of an earlier making goes on reading them."""
        parts = {name: len(sizes) for name, sizes in manifest.files.items()}
        merged = {name: list(map(str, paths)) for name, paths in tables.items()}
        half = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        await asyncio.to_thread(half.mkdir, parents=True)
        job = AsOfJob(msgspec.to_builtins(self._settings), merged, str(half), ns, parts)
        try:
            async with child_process("rayhistory.index.asof") as process:
                _, complaint = await process.communicate(msgspec.json.encode(job))
            if process.returncode != 0:
                last = (complaint.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
                failure = DamagedIndex if process.returncode == DAMAGED else FoldFailed
                raise failure(f"{ref.path} cannot be shown as of that moment: {last[:500]}")
            await asyncio.to_thread(self._publish, half, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)

    def _publish(self, half: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)
        self._cache.make_room(0)
