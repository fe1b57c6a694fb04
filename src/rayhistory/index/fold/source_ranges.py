"""Byte ranges of sources: of objects, and of streams inside packs."""

import asyncio
from collections import defaultdict

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.index.fold.fetch_ahead import PIECE_BYTES
from rayhistory.index.fold.sources import Source, SourceKind
from rayhistory.packs.pack_format import Stream
from rayhistory.packs.pack_reader import PackCache, PackReader
from rayhistory.storage import Store

_NO_STREAM = -1


class SourceRanges:
    """Reads ranges of any source. The pack directory of a node is read once for all of its streams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._packs = PackCache()
        self._refresh_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(self, source: Source, start: int, end: int) -> bytes:
        """Return bytes [start, end).

        If they are the object's last bytes and it has grown, return the new bytes, too.
        """
        if source.kind in (SourceKind.PACKED_EVENTS, SourceKind.PACKED_LOG):
            return await self._read_stream(source, start, end)
        if end < source.size:
            return await self._store.get_range(source.key, start, end)
        data = await self._store.get_range(source.key, start, end + 1)
        if len(data) <= end - start:
            return data
        return await self._store.get_range(source.key, start, start + PIECE_BYTES)

    async def _read_stream(self, source: Source, start: int, end: int) -> bytes:
        prefix, _, name = source.key.partition("#")
        reader = await self._reader(prefix, source.pack)
        if source.kind is SourceKind.PACKED_EVENTS:
            # A stream that is gone has become an event object by now. The next fold finds it.
            stream = reader.event_streams.get(name) or Stream(_NO_STREAM, name)
            return await reader.read_stream(stream, start, end)
        try:
            return await reader.read(name, start, end)
        except LogNotFound as error:
            raise ObjectNotFound(str(error)) from None

    async def _reader(self, prefix: str, newest_pack: str) -> PackReader:
        async with self._refresh_locks[prefix]:
            reader = self._packs.reader(self._store, prefix)
            if not reader.was_refreshed:
                await reader.refresh(newest_pack)
            return reader
