"""Tables of a session as of a point in time, built on demand and stored in the local cache beside the index."""

import asyncio
import secrets
import shutil
from pathlib import Path

import msgspec

from rayhistory.errors import IndexDamaged, IndexFailed, SessionNotIndexed
from rayhistory.events.merged_tables import TABLES
from rayhistory.index.child_process import child_process
from rayhistory.index.fold.as_of import EXIT_DAMAGED, AsOfJob
from rayhistory.index.fold.served_tables import merged_table_name
from rayhistory.index.manifest import MERGED_PREFIX, Manifest
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.service.slots import Slots
from rayhistory.index.service.table_cache import TableCache
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings


class AsOfCache:
    """Builds as-of tables once for all waiting requests."""

    def __init__(self, settings: Settings, cache: TableCache, slots: Slots) -> None:
        self._settings = settings
        self._cache = cache
        self._slots = slots
        self._builds: dict[Path, asyncio.Task[None]] = {}

    async def open(self, ref: SessionRef, manifest: Manifest, ns: int, timeout_s: float) -> OpenIndex:
        folder = self._cache.folder(ref, f"{manifest.build}@{ns}")
        served = {name: sizes for name, sizes in manifest.files.items() if not name.startswith(MERGED_PREFIX)}
        as_of_manifest = msgspec.structs.replace(manifest, files=served, closing=None, last_ns=ns)

        async def fetch(name: str, parts: range, *, refetch: bool) -> list[Path]:
            paths = [folder / f"{name}.{part}.parquet" for part in parts]
            if refetch or not all(path.exists() for path in paths):
                await self._ensure_built(ref, manifest, folder, ns, timeout_s)
            return paths

        return OpenIndex(as_of_manifest, fetch)

    async def _ensure_built(self, ref: SessionRef, manifest: Manifest, folder: Path, ns: int, timeout_s: float) -> None:
        """Wait for the build. After a timeout it goes on, so that the next request finds it."""
        if folder not in self._builds:
            self._builds[folder] = asyncio.create_task(self._build(ref, manifest, folder, ns))
            self._builds[folder].add_done_callback(lambda _: self._builds.pop(folder))
        try:
            await asyncio.wait_for(asyncio.shield(self._builds[folder]), timeout_s)
        except TimeoutError:
            raise SessionNotIndexed("building the session as of this time") from None

    async def _build(self, ref: SessionRef, manifest: Manifest, folder: Path, ns: int) -> None:
        for refetch in (False, True):
            merged = {
                table.name: await self._cache.table(ref, manifest, merged_table_name(table.name), refetch=refetch)
                for table in TABLES
            }
            try:
                async with self._slots.acquire(manifest.counts.size_bytes):
                    await self._run_job(ref, manifest, merged, folder, ns)
            except IndexDamaged:
                if refetch:
                    raise
            else:
                return

    async def _run_job(
        self, ref: SessionRef, manifest: Manifest, tables: dict[str, list[Path]], folder: Path, ns: int
    ) -> None:
        """Build the tables in a child process and publish them at once.

        Open files of an earlier build stay readable.
        """
        parts = {name: len(sizes) for name, sizes in manifest.files.items()}
        merged = {name: list(map(str, paths)) for name, paths in tables.items()}
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        await asyncio.to_thread(partial.mkdir, parents=True)
        job = AsOfJob(msgspec.to_builtins(self._settings), merged, str(partial), ns, parts)
        try:
            async with child_process("rayhistory.index.fold.as_of") as process:
                _, stderr = await process.communicate(msgspec.json.encode(job))
            if process.returncode != 0:
                last = (stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
                failure = IndexDamaged if process.returncode == EXIT_DAMAGED else IndexFailed
                raise failure(f"{ref.path} cannot be shown as of this time: {last[:500]}")
            await asyncio.to_thread(self._publish, partial, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)

    def _publish(self, partial: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        self._cache.make_room(0)
