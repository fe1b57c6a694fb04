"""Reading of one source into rows, in pieces of bounded size, whatever state it is in."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import msgspec

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.events.dashboard_responses import add_dashboard_rows
from rayhistory.events.event_decoder import EventDecoder
from rayhistory.events.event_logs import add_log_lines
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.gaps import GapCode
from rayhistory.index.fold.decompression import MAX_TEXT_BYTES, GzipDecompressor, decompressor_for
from rayhistory.index.fold.sources import Source, SourceKind
from rayhistory.packs.pack_format import Stream
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions.keys import endpoint_uri
from rayhistory.storage import Store

_READ_WHOLE = (SourceKind.EVENT_LOG, SourceKind.PACKED_LOG, SourceKind.ENDPOINT)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_READ_BYTES = 4 << 20
"""Bytes that are fetched at once."""
_BLOCK_BYTES = MAX_TEXT_BYTES
"""Lines are decoded in blocks of at least this size."""
_MAX_WHOLE_BYTES = 128 << 20
"""The largest line, array of events, event log or dashboard response: each is held in memory as a whole."""


async def read_source(store: Store, source: Source, rows: RowBuffer) -> AsyncIterator[tuple[int, int]]:
    """Add the rows of a source in portions; yield the number of events and of bytes of each."""
    name = f"{source.key}@{source.start}" if source.start else source.key
    decoder = EventDecoder(name, rows, int(source.modified * 1e9) or None)
    if source.kind in (SourceKind.EVENT_LOG, SourceKind.PACKED_LOG):
        unreadable = add_log_lines(decoder.rows, await _read_log(store, source))
        if unreadable:
            decoder.count_gap(GapCode.LINE_UNREADABLE, count=unreadable)
        if source.size > _MAX_WHOLE_BYTES:
            decoder.count_gap(GapCode.EVENT_LOG_TOO_LARGE)
    elif source.kind is SourceKind.ENDPOINT and source.size > _MAX_WHOLE_BYTES:
        decoder.count_gap(GapCode.DASHBOARD_RESPONSE_TOO_LARGE)
    elif source.kind is SourceKind.ENDPOINT:
        _read_endpoint(decoder, source, await store.get(source.key))
    else:
        async for block, is_array in _blocks(store, source, decoder):
            for portion in _portions(block) if is_array else (block,):
                events = decoder.feed_array(portion) if is_array else decoder.feed(portion)
                yield events, len(portion)
    decoder.finish()
    yield 0, source.size if source.kind in _READ_WHOLE else 0


def _portions(array: bytes) -> Iterator[bytes]:
    """Split a large array of events into several: decoded events need much more memory than their text."""
    try:
        events = _ARRAY.decode(array) if len(array) > _READ_BYTES else []
    except (msgspec.DecodeError, RecursionError):  # counted when the array is decoded
        events = []
    if not events:
        yield array
        return
    step = -(-len(events) * _READ_BYTES // len(array))
    for start in range(0, len(events), step):
        yield b"[%b]" % b",".join(events[start : start + step])


async def _read_log(store: Store, source: Source) -> bytes:
    if source.kind is SourceKind.EVENT_LOG and source.size <= _MAX_WHOLE_BYTES:
        return await store.get(source.key)
    if source.kind is SourceKind.EVENT_LOG:
        return await store.get_range(source.key, 0, _MAX_WHOLE_BYTES)
    prefix, _, name = source.key.partition("#")
    reader = PackReader(store, prefix)
    await reader.refresh()
    try:
        data = await reader.read(name, 0, min(source.size, _MAX_WHOLE_BYTES))
    except LogNotFound as error:
        raise ObjectNotFound(str(error)) from None
    return data[: data.rfind(b"\n") + 1]  # the last line may not be complete yet


async def _blocks(store: Store, source: Source, decoder: EventDecoder) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield blocks of whole lines, or a whole JSON array, and whether it is an array.

    Lines and arrays that are too large are skipped: up to the end of the line, or the rest of the array.
    """
    pieces: list[bytes] = []
    size = 0
    is_array: bool | None = None
    skipping = False
    async for text in _texts(store, source, decoder):
        if skipping:
            if is_array or not (begin := text.find(b"\n") + 1):
                continue
            text, skipping = text[begin:], False  # noqa: PLW2901
        pieces.append(text)
        size += len(text)
        if is_array is None and (first := text.lstrip()[:1]):
            is_array = first == b"["
        cut = text.rfind(b"\n") + 1
        if size > _MAX_WHOLE_BYTES and (is_array or not cut):
            decoder.count_gap(GapCode.EVENT_ARRAY_TOO_LARGE if is_array else GapCode.LINE_TOO_LONG)
            pieces, size, skipping = [], 0, True
        elif size >= _BLOCK_BYTES and cut and not is_array:
            pieces[-1] = text[:cut]
            yield b"".join(pieces), False
            pieces = [text[cut:]]
            size = len(text) - cut
    rest = b"".join(pieces)
    pieces.clear()
    yield rest, bool(is_array)


async def _texts(store: Store, source: Source, decoder: EventDecoder) -> AsyncIterator[bytes]:
    """Yield the object's text in pieces of any length; the next piece is fetched while one is decoded."""
    decompressor: GzipDecompressor | None = None
    read = await _range_reader(store, source)
    ahead = asyncio.ensure_future(read(source.start, source.start + _READ_BYTES))
    try:
        for start in range(source.start, max(source.size, 1), _READ_BYTES):
            piece = await ahead
            if start + _READ_BYTES < source.size:
                ahead = asyncio.ensure_future(read(start + _READ_BYTES, start + 2 * _READ_BYTES))
            if start == source.start:
                decompressor = decompressor_for(piece)
                if source.kind is SourceKind.PACKED_EVENTS and decompressor is None:
                    if piece:
                        decoder.count_gap(GapCode.PACKED_EVENTS_DAMAGED)
                    break
            for text in decompressor.feed(piece) if decompressor else _split(piece):
                yield text
            if decompressor and decompressor.broken:
                break  # nothing after the damage can be read
    finally:
        ahead.cancel()
    if decompressor and decompressor.truncated:
        decoder.count_gap(GapCode.OBJECT_TRUNCATED, decompressor.name)


def _split(piece: bytes) -> Iterator[bytes]:
    return (piece[start : start + _BLOCK_BYTES] for start in range(0, len(piece), _BLOCK_BYTES))


async def _range_reader(store: Store, source: Source) -> Callable[[int, int], Awaitable[bytes]]:
    """Return a function that reads a byte range of the source."""
    if source.kind is not SourceKind.PACKED_EVENTS:
        return lambda start, end: store.get_range(source.key, start, end)
    prefix, _, name = source.key.partition("#")
    reader = PackReader(store, prefix)
    await reader.refresh()
    # A stream that is gone has become an object of its own by now, which the next fold finds.
    stream = reader.event_streams.get(name) or Stream(-1, name)
    return lambda start, end: reader.read_stream(stream, start, min(end, source.size))


def _read_endpoint(decoder: EventDecoder, source: Source, body: bytes) -> None:
    """Add a dashboard response that KubeRay's collector stored. Its time is the object's modification time."""
    uri = endpoint_uri(source.key)
    ns = int(source.modified * 1e9)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoder.count_gap(GapCode.DASHBOARD_RESPONSE_UNREADABLE, uri)
        return
    decoder.rows.add("snapshots", uri=uri, ns=ns, body=body.decode("utf-8", "replace"))
    anomaly = add_dashboard_rows(decoder.rows, uri, document, ns)
    if anomaly:
        decoder.count_gap(*anomaly)
