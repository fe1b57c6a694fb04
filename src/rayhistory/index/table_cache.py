"""Local copies of index tables, shared by all processes of this machine, up to a maximum size.

A generation never changes, so a copy with the right size is valid. Its digest was checked when it was downloaded. The
least recently used copies are evicted first.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from rayhistory.concurrency import ByteBudget, concurrently
from rayhistory.errors import IndexDamaged, ObjectNotFound
from rayhistory.index.index_objects import PromisedObject
from rayhistory.index.manifest import Manifest, StoredFile
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.keys import PRODUCTS_FOLDER
from rayhistory.storage import Store

_CHUNK_BYTES = 8 << 20
_MAX_CHUNKS_AT_ONCE = 8
_MAX_BYTES_IN_FLIGHT = 64 << 20
"""Memory for bytes that are being downloaded, for all tables together."""
_PARTIAL_FILE_MAX_AGE_S = 600.0


class TableCache:
    def __init__(self, directory: Path, store: Store, layout: Layout, budget: int) -> None:
        self._directory = directory
        self._store = store
        self._layout = layout
        self._budget = budget
        self._fetch_locks: dict[Path, asyncio.Lock] = {}
        self._memory = ByteBudget(_MAX_BYTES_IN_FLIGHT)

    def open(self, ref: SessionRef, manifest: Manifest) -> OpenIndex:
        """Open the index of this generation. Its tables are fetched when a query needs them."""

        async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
            return await self.table(ref, manifest, name, numbers, refetch=refetch)

        return OpenIndex(manifest, fetch)

    def folder(self, ref: SessionRef, build: str) -> Path:
        """Return the directory for the tables of one generation, or of an as-of view of it."""
        return self._directory / ref.path / build

    async def table(
        self,
        ref: SessionRef,
        manifest: Manifest,
        name: str,
        numbers: Sequence[int] | None = None,
        *,
        refetch: bool = False,
    ) -> list[Path]:
        """Return local copies of a table's files; `refetch` replaces damaged copies."""
        files = manifest.files_of(name)
        wanted = files if numbers is None else [files[number] for number in numbers]
        return list(
            await asyncio.gather(*(self._table_file(ref, manifest, name, file, refetch=refetch) for file in wanted))
        )

    async def _table_file(
        self, ref: SessionRef, manifest: Manifest, name: str, file: StoredFile, *, refetch: bool
    ) -> Path:
        path = self.folder(ref, file.folder) / f"{name}.{file.number}.parquet"
        key = self._layout.index_file_key(ref, file.folder, name, file.number)
        what = f"index table {name} of {ref.path} is {{}} (generation {manifest.generation})"
        return await self.file(key, PromisedObject(file.size, file.digest), path, what, refetch=refetch)

    async def file(self, key: str, expected: PromisedObject, path: Path, what: str, *, refetch: bool = False) -> Path:
        """Return the local copy of an object. `what` is a format string for the message about damage."""
        async with self._fetch_locks.setdefault(path, asyncio.Lock()):
            if refetch or not _has_size(path, expected.size):
                await self._fetch(key, expected, path, what)
        self._fetch_locks.pop(path, None)
        with contextlib.suppress(OSError):
            os.utime(path)
        return path

    async def _fetch(self, key: str, expected: PromisedObject, path: Path, what: str) -> None:
        """Download in chunks. The last request asks for one byte more, to detect an object that is too long."""
        size = expected.size
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")

        async def fetch_chunk(start: int) -> None:
            end = min(start + _CHUNK_BYTES, size)
            async with self._memory.hold(end - start):
                data = await self._store.get_range(key, start, end + 1 if end == size else end)
                if len(data) != end - start:
                    raise IndexDamaged(what.format("damaged"))
                await _uninterrupted(asyncio.to_thread(self._write_chunk, partial, start, data))

        try:
            await concurrently(map(fetch_chunk, range(0, max(size, 1), _CHUNK_BYTES)), _MAX_CHUNKS_AT_ONCE)
            if not await asyncio.to_thread(expected.has_content, partial):
                raise IndexDamaged(what.format("damaged"))
            await asyncio.to_thread(partial.replace, path)
        except ObjectNotFound:
            raise IndexDamaged(what.format("missing")) from None
        finally:
            await asyncio.to_thread(partial.unlink, missing_ok=True)

    def _write_chunk(self, partial: Path, start: int, data: bytes) -> None:
        self.make_room(len(data))
        file = _open_to_write(partial)
        rest = memoryview(data)
        try:
            while rest:  # the last write before a disk is full takes a part of the bytes, without an error
                written = os.pwrite(file, rest, start)
                rest, start = rest[written:], start + written
        finally:
            os.close(file)

    def make_room(self, needed_bytes: int) -> None:
        """Evict the least recently used files. Other processes may do the same, so missing files are ignored.

        Recent partial files belong to running downloads and stay. Old ones were left by killed processes.
        """
        files = []
        tables, products = self._directory.rglob("*.parquet*"), self._directory.glob(f"*/*/*/{PRODUCTS_FOLDER}/*/*/*")
        for path in {*tables, *products}:
            with contextlib.suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        free = self._budget - needed_bytes - sum(size for _, size, _ in files)
        oldest_partial = time.time() - _PARTIAL_FILE_MAX_AGE_S
        for modified, size, path in sorted(files):
            if free >= 0:
                return
            if path.name.startswith(".") and modified > oldest_partial:
                continue
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            free += size


def _open_to_write(path: Path) -> int:
    """Create the directory and open the file. Another process may remove the directory while it is empty."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work in a thread to finish, even if the caller is cancelled.

    Otherwise the work could create a file after the clean-up.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait([task])


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
