"""Local copies of index tables, shared by all processes of this machine, within a budget of bytes.

A generation never changes, so a copy of the right size is a good one. What was not used for longest goes first.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rayhistory.errors import DamagedIndex, ObjectNotFound
from rayhistory.index.manifest import Manifest
from rayhistory.index.query import OpenIndex
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage import Store

_BLOCK = 16 << 20
_MOST_UNDER_WAY = 64 << 20
"""How much is held in memory on its way from the store to the disk, of all tables together."""
_BEING_WRITTEN = 600.0


class IndexCache:
    def __init__(self, directory: Path, store: Store, layout: Layout, budget: int) -> None:
        self._directory = directory
        self._store = store
        self._layout = layout
        self._budget = budget
        self._fetching: dict[Path, asyncio.Lock] = {}
        self._under_way = 0
        self._arrived = asyncio.Condition()

    def open(self, ref: SessionRef, manifest: Manifest) -> OpenIndex:
        """The index of this generation; its tables are fetched when they are asked for."""

        async def fetch(name: str, parts: range, *, again: bool) -> list[Path]:
            return await self.table(ref, manifest, name, parts, again=again)

        return OpenIndex(manifest, fetch)

    def folder(self, ref: SessionRef, build: str) -> Path:
        """Where the tables of one generation, or of a moment of it, are kept."""
        return self._directory / ref.path / build

    async def table(
        self, ref: SessionRef, manifest: Manifest, name: str, parts: range | None = None, *, again: bool = False
    ) -> list[Path]:
        """The local copies of a table's files; `again` when those that are there turned out to be damaged."""
        parts = range(len(manifest.sizes(name))) if parts is None else parts
        return list(await asyncio.gather(*(self._part(ref, manifest, name, part, again=again) for part in parts)))

    async def _part(self, ref: SessionRef, manifest: Manifest, name: str, part: int, *, again: bool) -> Path:
        path = self.folder(ref, manifest.build) / f"{name}.{part}.parquet"
        async with self._fetching.setdefault(path, asyncio.Lock()):
            if again or not _has_size(path, manifest.files[name][part]):
                await self._fetch(ref, manifest, name, part, path)
        self._fetching.pop(path, None)
        with contextlib.suppress(OSError):
            os.utime(path)
        return path

    async def _fetch(self, ref: SessionRef, manifest: Manifest, name: str, part: int, path: Path) -> None:
        """Block by block; a byte more is asked for than there should be, so that a longer object is seen too."""
        key, size = self._layout.index_file_key(ref, manifest.build, name, part), manifest.files[name][part]
        half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            for begin in range(0, max(size, 1), _BLOCK):
                end = min(begin + _BLOCK, size)
                async with self._room_in_memory(end - begin):
                    data = await self._store.get_range(key, begin, end + 1 if end == size else end)
                    if len(data) != end - begin:
                        text = f"table {name} of generation {manifest.generation} of {ref.path} is damaged"
                        raise DamagedIndex(text)
                    await asyncio.to_thread(self._append, half, data)
            await asyncio.to_thread(half.replace, path)
        except ObjectNotFound:
            raise DamagedIndex(f"table {name} of generation {manifest.generation} of {ref.path} is gone") from None
        finally:
            await asyncio.to_thread(half.unlink, missing_ok=True)

    @asynccontextmanager
    async def _room_in_memory(self, size: int) -> AsyncIterator[None]:
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._under_way + size <= _MOST_UNDER_WAY)
            self._under_way += size
        try:
            yield
        finally:
            self._under_way -= size
            async with self._arrived:
                self._arrived.notify_all()

    def _append(self, half: Path, data: bytes) -> None:
        self.make_room(len(data))
        half.parent.mkdir(parents=True, exist_ok=True)
        with half.open("ab") as file:
            file.write(data)

    def make_room(self, needed: int) -> None:
        """Removes what was not used for longest. Another process may do the same: a file that is gone is no harm.

        What is just being written is left alone; what has been for long was left by a process that is gone.
        """
        files = []
        for path in self._directory.rglob("*.parquet*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        room = self._budget - needed - sum(size for _, size, _ in files)
        being_written = time.time() - _BEING_WRITTEN
        for modified, size, path in sorted(files):
            if room >= 0:
                return
            if path.name.startswith(".") and modified > being_written:
                continue
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            room += size


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
