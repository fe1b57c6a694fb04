"""Local copies of index tables, shared by all processes of this machine, within a budget of bytes.

A generation never changes, so a copy of the right size is a good one. What was not used for longest goes first.
"""

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

from rayhistory.errors import DamagedIndex, ObjectNotFound
from rayhistory.index.manifest import Manifest
from rayhistory.index.query import OpenIndex
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage import Store


class IndexCache:
    def __init__(self, directory: Path, store: Store, layout: Layout, budget: int) -> None:
        self._directory = directory
        self._store = store
        self._layout = layout
        self._budget = budget
        self._fetching: dict[Path, asyncio.Lock] = {}

    def open(self, ref: SessionRef, manifest: Manifest) -> OpenIndex:
        """The index of this generation; its tables are fetched when they are asked for."""

        async def fetch(name: str, *, again: bool) -> list[Path]:
            return await self.table(ref, manifest, name, again=again)

        return OpenIndex(manifest, fetch)

    def folder(self, ref: SessionRef, build: str) -> Path:
        """Where the tables of one generation, or of a moment of it, are kept."""
        return self._directory / ref.path / build

    async def table(self, ref: SessionRef, manifest: Manifest, name: str, *, again: bool = False) -> list[Path]:
        """The local copies of a table's files; `again` when those that are there turned out to be damaged."""
        parts = range(len(manifest.sizes(name)))
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
        try:
            key = self._layout.index_file_key(ref, manifest.build, name, part)
            data = await self._store.get_range(key, 0, manifest.files[name][part] + 1)
        except ObjectNotFound:
            raise DamagedIndex(f"table {name} of generation {manifest.generation} of {ref.path} is gone") from None
        if len(data) != manifest.files[name][part]:
            raise DamagedIndex(f"table {name} of generation {manifest.generation} of {ref.path} is damaged")
        await asyncio.to_thread(self._keep, path, data)

    def _keep(self, path: Path, data: bytes) -> None:
        self.make_room(len(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        half.write_bytes(data)
        half.replace(path)

    def make_room(self, needed: int) -> None:
        """Removes what was not used for longest. Another process may do the same: a file that is gone is no harm."""
        files = []
        for path in self._directory.rglob("*.parquet*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        room = self._budget - needed - sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if room >= 0:
                return
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            room += size


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
