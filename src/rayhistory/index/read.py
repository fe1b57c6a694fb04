"""Reading one source of the fold into rows, piece by piece, whatever state it is in."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
import zstandard
from isal import isal_zlib

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.events import snapshots
from rayhistory.events.columns import Rows
from rayhistory.events.decode import EventDecoder
from rayhistory.events.logevents import add_log_lines
from rayhistory.index.sources import Kind, Source
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Stream
from rayhistory.storage import Store

_READ_WHOLE = (Kind.EVENT_LOG, Kind.PACKED_LOG, Kind.ENDPOINT)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_PIECE = 4 << 20
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LARGEST = 128 << 20
"""Of what is only understood as a whole: a line, an array of events, an event log, an answer of the dashboard."""


async def read_source(store: Store, source: Source, rows: Rows) -> AsyncIterator[tuple[int, int]]:
    """Adds the rows of a source in portions, and tells how many events and how many bytes were in each."""
    decoder = EventDecoder(f"{source.key}@{source.start}" if source.start else source.key, rows)
    if source.kind in (Kind.EVENT_LOG, Kind.PACKED_LOG):
        unreadable = add_log_lines(decoder.rows, await _log(store, source))
        if unreadable:
            decoder.set_aside("unreadable line", count=unreadable)
        if source.size > _LARGEST:
            decoder.set_aside("event log that is too large to be read whole")
    elif source.kind is Kind.ENDPOINT and source.size > _LARGEST:
        decoder.set_aside("answer of the dashboard that is too large")
    elif source.kind is Kind.ENDPOINT:
        _read_endpoint(decoder, source, await store.get(source.key))
    else:
        async for block, is_array in _blocks(store, source, decoder):
            for portion in _portions(block) if is_array else (block,):
                events = decoder.feed_array(portion) if is_array else decoder.feed(portion)
                yield events, len(portion)
    decoder.finish()
    yield 0, source.size if source.kind in _READ_WHOLE else 0


def _portions(array: bytes) -> Iterator[bytes]:
    """An array of events as several: once they are decoded, they take up much more memory."""
    try:
        events = _ARRAY.decode(array) if len(array) > _PIECE else []
    except (msgspec.DecodeError, RecursionError):  # which is told by whoever reads it
        events = []
    if not events:
        yield array
        return
    step = -(-len(events) * _PIECE // len(array))
    for start in range(0, len(events), step):
        yield b"[%b]" % b",".join(events[start : start + step])


async def _log(store: Store, source: Source) -> bytes:
    if source.kind is Kind.EVENT_LOG and source.size <= _LARGEST:
        return await store.get(source.key)
    if source.kind is Kind.EVENT_LOG:
        return await store.get_range(source.key, 0, _LARGEST)
    prefix, _, name = source.key.partition("#")
    reader = PackReader(store, prefix)
    await reader.refresh()
    try:
        data = await reader.read(name, 0, min(source.size, _LARGEST))
    except LogNotFound as error:
        raise ObjectNotFound(str(error)) from None
    return data[: data.rfind(b"\n") + 1]  # the rest of the last line may be on its way


async def _blocks(store: Store, source: Source, decoder: EventDecoder) -> AsyncIterator[tuple[bytes, bool]]:
    """Whole lines, as many at once as are decoded well; or a JSON array, in one piece.

    What is too large to be held is passed over: the rest of an array, or up to the end of the line.
    """
    parts: list[bytes] = []
    size = 0
    is_array: bool | None = None
    passing = False
    async for text in _texts(store, source, decoder):
        if passing:
            if is_array or not (begin := text.find(b"\n") + 1):
                continue
            text, passing = text[begin:], False  # noqa: PLW2901
        parts.append(text)
        size += len(text)
        if is_array is None and (first := text.lstrip()[:1]):
            is_array = first == b"["
        cut = text.rfind(b"\n") + 1
        if size > _LARGEST and (is_array or not cut):
            decoder.set_aside("array of events that is too large" if is_array else "line that is too long")
            parts, size, passing = [], 0, True
        elif size >= _BLOCK and cut and not is_array:
            parts[-1] = text[:cut]
            yield b"".join(parts), False
            parts = [text[cut:]]
            size = len(text) - cut
    rest = b"".join(parts)
    parts.clear()
    yield rest, bool(is_array)


async def _texts(store: Store, source: Source, decoder: EventDecoder) -> AsyncIterator[bytes]:
    """The object's text in pieces, cut anywhere; the next is fetched while one is decoded."""
    unpack: Unpacker | None = None
    read = await _bytes(store, source)
    ahead = asyncio.ensure_future(read(source.start, source.start + _PIECE))
    try:
        for start in range(source.start, max(source.size, 1), _PIECE):
            piece = await ahead
            if start + _PIECE < source.size:
                ahead = asyncio.ensure_future(read(start + _PIECE, start + 2 * _PIECE))
            if start == source.start:
                unpack = unpacker(piece)
                if source.kind is Kind.PACKED_EVENTS and unpack is None:
                    if piece:
                        decoder.set_aside("damaged events in packs")
                    break
            for text in unpack.feed(piece) if unpack else _cut(piece):
                yield text
            if unpack and unpack.broken:
                break  # nothing after it can be read
    finally:
        ahead.cancel()
    if unpack and unpack.truncated:
        decoder.set_aside(f"truncated {unpack.name}")


def _cut(piece: bytes) -> Iterator[bytes]:
    return (piece[start : start + _BLOCK] for start in range(0, len(piece), _BLOCK))


async def _bytes(store: Store, source: Source) -> Callable[[int, int], Awaitable[bytes]]:
    """Gives a part of the source."""
    if source.kind is not Kind.PACKED_EVENTS:
        return lambda start, end: store.get_range(source.key, start, end)
    prefix, _, name = source.key.partition("#")
    reader = PackReader(store, prefix)
    await reader.refresh()
    stream = reader.events.get(name) or Stream(-1, name)  # forgotten since: the objects are found by the next fold
    return lambda start, end: reader.read_stream(stream, start, min(end, source.size))


class Unpacker:
    """Any number of gzip members, piece by piece; what comes after damage is lost, what came before is not."""

    name = "gzip"
    damage: type[Exception] = isal_zlib.error  # type: ignore[assignment]
    at_once = 16 << 10

    def __init__(self) -> None:
        self._stream = self._begin()
        self.broken = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The text of what was given, in pieces of bounded size."""
        for start in range(0, len(data), self.at_once):
            rest, text = data[start : start + self.at_once], b""
            while (rest or (len(text) == _BLOCK and not self._stream.eof)) and not self.broken:
                if self._stream.eof:
                    self._stream = self._begin()
                try:
                    text, rest = self._some(rest)
                except self.damage:
                    self.broken = True
                else:
                    yield text

    def _begin(self) -> Any:
        return isal_zlib.decompressobj(wbits=31)

    def _some(self, data: bytes) -> tuple[bytes, bytes]:
        """A piece of text, and what is left of the data."""
        text = self._stream.decompress(data, _BLOCK)
        return text, self._stream.unconsumed_tail or self._stream.unused_data

    @property
    def truncated(self) -> bool:
        return self.broken or not self._stream.eof


class ZstdUnpacker(Unpacker):
    """The same for zstd."""

    name = "zstd"
    damage = zstandard.ZstdError
    at_once = 256  # which is 8 MiB at most: four bytes can stand for 128 KiB, and it gives all that it can

    def _begin(self) -> Any:
        return zstandard.ZstdDecompressor().decompressobj()

    def _some(self, data: bytes) -> tuple[bytes, bytes]:
        return self._stream.decompress(data), self._stream.unused_data


def unpacker(head: bytes) -> Unpacker | None:
    """For what begins so; None when it is not compressed."""
    if head.startswith(_GZIP):
        return Unpacker()
    return ZstdUnpacker() if head.startswith(_ZSTD) else None


def _read_endpoint(decoder: EventDecoder, source: Source, body: bytes) -> None:
    """An answer that KubeRay's collector kept: only the store knows when."""
    name = source.key.rpartition("/")[2].removeprefix("restful__")
    path, question, query = name.partition("?")
    uri = "/" + path.replace("__", "/") + question + "&".join(sorted(query.split("&")))
    ns = int(source.modified * 1e9)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoder.set_aside("unreadable answer of the dashboard", uri)
        return
    decoder.rows.add("snapshots", (uri, ns, body.decode("utf-8", "replace")))
    problem = snapshots.add_rows(decoder.rows.add, uri, document, ns)
    if problem:
        decoder.set_aside(*problem)
