"""Moments of a session that somebody looks at: made when asked for, kept in the local cache beside the index."""

import asyncio
import shutil
import sys
from pathlib import Path

import msgspec

from rayhistory.errors import FoldFailed
from rayhistory.events.tables import TABLES
from rayhistory.index.asof import AsOfJob
from rayhistory.index.cache import IndexCache
from rayhistory.index.derive import merged_file
from rayhistory.index.manifest import MERGED, Manifest
from rayhistory.index.query import OpenIndex
from rayhistory.layout import SessionRef
from rayhistory.settings import Settings


class Moments:
    def __init__(self, settings: Settings, cache: IndexCache, slots: asyncio.Semaphore) -> None:
        self._settings = settings
        self._cache = cache
        self._slots = slots
        self._making: dict[Path, asyncio.Lock] = {}

    async def open(self, ref: SessionRef, manifest: Manifest, ns: int) -> OpenIndex:
        folder = self._cache.folder(ref, f"{manifest.build}@{ns}")
        served = {name: size for name, size in manifest.files.items() if not name.startswith(MERGED)}
        as_it_was = msgspec.structs.replace(manifest, files=served, closing=None, last_ns=ns)

        async def fetch(name: str, *, again: bool) -> Path:
            path = folder / f"{name}.parquet"
            async with self._making.setdefault(folder, asyncio.Lock()):
                if again or not path.exists():
                    await self._make(ref, manifest, folder, ns)
            return path

        return OpenIndex(as_it_was, fetch)

    async def _make(self, ref: SessionRef, manifest: Manifest, folder: Path, ns: int) -> None:
        merged = {t.name: str(await self._cache.table(ref, manifest, merged_file(t.name))) for t in TABLES}
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.to_thread(folder.mkdir, parents=True)
        job = AsOfJob(msgspec.to_builtins(self._settings), merged, str(folder), ns)
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rayhistory.index.asof",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, complaint = await process.communicate(msgspec.json.encode(job))
        if process.returncode != 0:
            last = (complaint.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
            raise FoldFailed(f"{ref.path} cannot be shown as of that moment: {last[:500]}")
