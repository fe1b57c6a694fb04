"""Fetch sources ahead: many requests in flight while sources are decoded, within a budget of bytes and requests.

A store takes tens of milliseconds to respond, and a small object takes about one to decode. Sources are fetched in
pieces, in the order in which they are decoded. So a large object needs no more memory than many small ones.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

import msgspec

from rayhistory.index.fold.sources import Source

PIECE_BYTES = 4 << 20
MAX_REQUESTS = 64

Read = Callable[[Source, int, int], Awaitable[bytes]]
"""Reads a byte range of a source."""


class _Piece(msgspec.Struct, frozen=True):
    source: Source
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class FetchAhead:
    """Fetches the pieces of sources before they are needed. Sources must be consumed in the given order."""

    def __init__(self, read: Read, sources: Iterable[Source], max_bytes: int) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._sources = iter(sources)
        self._planned: Iterator[_Piece] = iter(())
        """The pieces of the source that is being fetched."""
        self._upcoming = self._plan_next()
        self._fetches: deque[tuple[_Piece, asyncio.Task[bytes]]] = deque()
        self._reserved = 0
        """Bytes in flight, fetched, or being decoded."""

    async def pieces(self, source: Source) -> AsyncIterator[bytes]:
        """Yield a source's bytes in pieces. Unread bytes of earlier sources are dropped."""
        self._skip_to(source)
        while self._next_is_of(source):
            piece, fetch = self._fetches[0]
            yield await fetch
            self._drop(piece, fetch)

    async def close(self) -> None:
        """Cancel all requests and wait until they have ended."""
        self._upcoming = None
        fetches = [fetch for _, fetch in self._fetches]
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def _next_is_of(self, source: Source) -> bool:
        self._start_fetches()
        return bool(self._fetches) and self._fetches[0][0].source is source

    def _start_fetches(self) -> None:
        while (piece := self._upcoming) and len(self._fetches) < MAX_REQUESTS:
            if self._fetches and self._reserved + piece.size > self._max_bytes:
                return
            self._fetches.append((piece, asyncio.ensure_future(self._read(piece.source, piece.start, piece.end))))
            self._reserved += piece.size
            self._upcoming = self._plan_next()

    def _plan_next(self) -> _Piece | None:
        while (piece := next(self._planned, None)) is None:
            source = next(self._sources, None)
            if source is None:
                return None
            self._planned = _pieces(source)
        return piece

    def _drop(self, piece: _Piece, fetch: "asyncio.Task[bytes]") -> None:
        """Drop the first fetch, whether it is pending, running or done."""
        self._fetches.popleft()
        self._reserved -= piece.size
        if not fetch.cancel() and not fetch.cancelled():
            fetch.exception()

    def _skip_to(self, source: Source) -> None:
        while self._fetches and self._fetches[0][0].source is not source:
            self._drop(*self._fetches[0])
        while not self._fetches and self._upcoming and self._upcoming.source is not source:
            self._planned = iter(())  # a damaged pack may claim any size, so pieces are not counted through
            self._upcoming = self._plan_next()


def _pieces(source: Source) -> Iterator[_Piece]:
    """Plan the pieces of a source. An empty source is fetched, too, because it may have grown or been deleted."""
    end = max(source.start, source.fetched_size)
    for start in range(source.start, max(end, source.start + 1), PIECE_BYTES):
        yield _Piece(source, start, min(start + PIECE_BYTES, end))
