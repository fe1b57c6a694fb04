"""Verified copy of one object between stores, in bounded memory."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from rayhistory.errors import StoreError
from rayhistory.storage import ObjectInfo, Store

CHUNK_BYTES = 4 << 20
_MAX_ATTEMPTS = 3

ReadRange = Callable[[int, int], Awaitable[bytes]]


class _SourceChanged(StoreError):
    """The source object changed while it was read."""


class Transfer:
    """Copies objects from `source` to `target`; objects larger than a chunk are buffered in `scratch`."""

    def __init__(self, source: Store, target: Store, scratch: Path) -> None:
        self._source = source
        self._target = target
        self._scratch = scratch

    async def copy(self, info: ObjectInfo, key: str, existing: ObjectInfo | None) -> bool:
        """Copy an object to `key`. Return False if the target already has the same bytes."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                if existing and existing.size == info.size and await self._is_same(info, existing):
                    return False
                if info.size <= CHUNK_BYTES:
                    await self.put(key, await self._source.get(info.key))
                else:
                    await self._copy_large(info, key)
            except _SourceChanged:
                info = await self._source.head(info.key)
            else:
                return True
        raise StoreError(f"{info.key} changed while it was copied: try again later")

    async def put(self, key: str, data: bytes) -> None:
        await self._target.put(key, data)
        await self._verify(key, len(data), _md5(data).hexdigest())

    async def put_ranges(self, key: str, size: int, read: ReadRange, existing: ObjectInfo | None) -> bool:
        """Write an object from ranges that `read` returns. Return False if the target already has the same bytes."""
        async with self._buffer(size, read) as (path, digest):
            if existing and existing.size == size and digest == await _digest(self._target, key, size):
                return False
            await self._target.put(key, path)
            await self._verify(key, size, digest)
        return True

    async def put_chunks(self, key: str, chunks: AsyncIterator[bytes], limit: int) -> tuple[int, bool]:
        """Write an object from chunks, up to `limit` bytes. Return its size, and whether all chunks were written."""
        size, digest, complete = 0, _md5(), True
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            async for chunk in chunks:
                accepted = chunk[: limit - size]
                digest.update(accepted)
                file.write(accepted)
                size += len(accepted)
                if len(accepted) < len(chunk):
                    complete = False
                    break
            file.flush()
            await self._target.put(key, Path(file.name))
            await self._verify(key, size, digest.hexdigest())
        return size, complete

    async def _copy_large(self, info: ObjectInfo, key: str) -> None:
        async def read(start: int, end: int) -> bytes:
            return await self._source.get_range(info.key, start, end)

        async with self._buffer(info.size, read) as (path, digest):
            now = await self._source.head(info.key)
            if (now.size, now.modified, now.tag) != (info.size, info.modified, info.tag):
                raise _SourceChanged(info.key)
            await self._target.put(key, path)
            await self._verify(key, info.size, digest)

    @asynccontextmanager
    async def _buffer(self, size: int, read: ReadRange) -> AsyncIterator[tuple[Path, str]]:
        """Write all chunks to a scratch file. Yield the file, and the MD5 of its bytes."""
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            digest = await _drain(size, read, file)
            yield Path(file.name), digest

    async def _is_same(self, info: ObjectInfo, existing: ObjectInfo) -> bool:
        """Return whether the target has the same bytes: compare the ETags and, if they differ, the bytes."""
        if info.size == 0 or (info.tag and info.tag == existing.tag):
            return True
        digest = await _digest(self._source, info.key, info.size)
        return digest == existing.tag or digest == await _digest(self._target, existing.key, existing.size)

    async def _verify(self, key: str, size: int, digest: str) -> None:
        """Raise StoreError if the stored bytes differ. They are read back only if the ETag is not the MD5."""
        written = await self._target.head(key)
        if written.size != size or (written.tag != digest and await _digest(self._target, key, size) != digest):
            raise StoreError(
                f"cannot copy {key} to {self._target.url}: the stored bytes differ from the bytes that were written"
            )


async def _digest(store: Store, key: str, size: int) -> str:
    async def read(start: int, end: int) -> bytes:
        return await store.get_range(key, start, end)

    return await _drain(size, read)


async def _drain(size: int, read: ReadRange, file: IO[bytes] | None = None) -> str:
    """Read all bytes and return their MD5. Also write the bytes to `file`, if given."""
    digest = _md5()
    for start in range(0, size, CHUNK_BYTES):
        chunk = await read(start, min(start + CHUNK_BYTES, size))
        if len(chunk) != min(CHUNK_BYTES, size - start):
            raise _SourceChanged(f"expected {size} bytes, got fewer")
        await asyncio.to_thread(digest.update, chunk)
        if file:
            await asyncio.to_thread(file.write, chunk)
    if file:
        await asyncio.to_thread(file.flush)
    return digest.hexdigest()


def _md5(data: bytes = b"") -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)
