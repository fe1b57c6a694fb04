"""One object from one store to another, with a proof that it arrived, in little memory whatever its size."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from rayhistory.errors import StoreError
from rayhistory.storage import ObjectInfo, Store

PIECE = 4 << 20
_TRIES = 3

Read = Callable[[int, int], Awaitable[bytes]]


class _Changed(StoreError):
    """The object is not what it was when its reading began."""


class Transfer:
    """`scratch` is a directory for what is larger than a piece."""

    def __init__(self, source: Store, target: Store, scratch: Path) -> None:
        self._source = source
        self._target = target
        self._scratch = scratch

    async def copy(self, info: ObjectInfo, key: str, there: ObjectInfo | None) -> bool:
        """Brings an object to its key in the target; False when the same bytes are there already."""
        for _ in range(_TRIES):
            try:
                if there and there.size == info.size and await self._is_same(info, there):
                    return False
                if info.size <= PIECE:
                    await self.put(key, await self._source.get(info.key))
                else:
                    await self._copy_large(info, key)
            except _Changed:
                info = await self._source.head(info.key)
            else:
                return True
        raise StoreError(f"{info.key} changes while it is copied: try again later")

    async def put(self, key: str, data: bytes) -> None:
        await self._target.put(key, data)
        await self._verify(key, len(data), _md5(data).hexdigest())

    async def put_stream(self, key: str, size: int, read: Read, there: ObjectInfo | None) -> bool:
        """The same for bytes that come from elsewhere; False when they are there already."""
        async with self._in_a_file(size, read) as (path, digest):
            if there and there.size == size and digest == await _digest(self._target, key, size):
                return False
            await self._target.put(key, path)
            await self._verify(key, size, digest)
        return True

    async def put_pieces(self, key: str, pieces: AsyncIterator[bytes], limit: int) -> tuple[int, bool]:
        """What comes in pieces, up to a limit: how much was put, and whether that was all."""
        size, digest, whole = 0, _md5(), True
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            async for piece in pieces:
                taken = piece[: limit - size]
                digest.update(taken)
                file.write(taken)
                size += len(taken)
                if len(taken) < len(piece):
                    whole = False
                    break
            file.flush()
            await self._target.put(key, Path(file.name))
            await self._verify(key, size, digest.hexdigest())
        return size, whole

    async def _copy_large(self, info: ObjectInfo, key: str) -> None:
        async def read(start: int, end: int) -> bytes:
            return await self._source.get_range(info.key, start, end)

        async with self._in_a_file(info.size, read) as (path, digest):
            now = await self._source.head(info.key)
            if (now.size, now.modified, now.tag) != (info.size, info.modified, info.tag):
                raise _Changed(info.key)
            await self._target.put(key, path)
            await self._verify(key, info.size, digest)

    @asynccontextmanager
    async def _in_a_file(self, size: int, read: Read) -> AsyncIterator[tuple[Path, str]]:
        with tempfile.NamedTemporaryFile(dir=self._scratch) as file:
            digest = await _drain(size, read, file)
            yield Path(file.name), digest

    async def _is_same(self, info: ObjectInfo, there: ObjectInfo) -> bool:
        """Equal tags are a proof; without one, both are read."""
        if info.size == 0 or (info.tag and info.tag == there.tag):
            return True
        ours = await _digest(self._source, info.key, info.size)
        return ours == there.tag or ours == await _digest(self._target, there.key, there.size)

    async def _verify(self, key: str, size: int, digest: str) -> None:
        """The tag of an object that was written in one piece is its MD5 in most stores; otherwise it is read again."""
        arrived = await self._target.head(key)
        if arrived.size != size or (arrived.tag != digest and await _digest(self._target, key, size) != digest):
            raise StoreError(f"{self._target.url}: {key}: what the store gives back is not what it was given")


async def _digest(store: Store, key: str, size: int) -> str:
    async def read(start: int, end: int) -> bytes:
        return await store.get_range(key, start, end)

    return await _drain(size, read)


async def _drain(size: int, read: Read, file: IO[bytes] | None = None) -> str:
    """The MD5 of all bytes, which are written to the file on the way."""
    digest = _md5()
    for start in range(0, size, PIECE):
        piece = await read(start, min(start + PIECE, size))
        if len(piece) != min(PIECE, size - start):
            raise _Changed(f"{size} bytes were announced, and fewer came")
        await asyncio.to_thread(digest.update, piece)
        if file:
            await asyncio.to_thread(file.write, piece)
    if file:
        await asyncio.to_thread(file.flush)
    return digest.hexdigest()


def _md5(data: bytes = b"") -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)
