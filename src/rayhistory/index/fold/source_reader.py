"""Read one source into rows, in pieces of bounded size. Damaged sources are read as far as possible."""

from collections.abc import AsyncIterator, Iterator

import msgspec

from rayhistory.events.dashboard_responses import add_dashboard_rows
from rayhistory.events.event_batch import EventBatch
from rayhistory.events.event_decoder import EventDecoder
from rayhistory.events.event_logs import add_log_lines
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.gaps import GapCode
from rayhistory.index.fold.decompression import MAX_TEXT_BYTES, GzipDecompressor, decompressor_for
from rayhistory.index.fold.sources import MAX_WHOLE_BYTES, READ_WHOLE, Source, SourceKind
from rayhistory.sessions.kuberay_keys import endpoint_uri

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_PORTION_BYTES = 4 << 20
"""Larger arrays of events are decoded in portions of about this size."""
_CHUNK_BYTES = MAX_TEXT_BYTES
"""Lines are decoded in chunks of at least this size."""


async def read_source(
    source: Source, pieces: AsyncIterator[bytes], rows: RowBuffer, batch: EventBatch | None = None
) -> AsyncIterator[tuple[int, int]]:
    """Add the rows of a source, in portions. Yield the number of events and bytes of each portion."""
    name = f"{source.key}@{source.start}" if source.start else source.key
    decoder = EventDecoder(name, rows, int(source.modified * 1e9) or None, batch)
    if source.kind in (SourceKind.EVENT_LOG, SourceKind.PACKED_LOG):
        unreadable = add_log_lines(decoder.rows, _whole_lines(source, await _join(pieces)))
        if unreadable:
            decoder.count_gap(GapCode.LINE_UNREADABLE, count=unreadable)
        if source.size > MAX_WHOLE_BYTES:
            decoder.count_gap(GapCode.EVENT_LOG_TOO_LARGE)
    elif source.kind is SourceKind.ENDPOINT and source.size > MAX_WHOLE_BYTES:
        decoder.count_gap(GapCode.DASHBOARD_RESPONSE_TOO_LARGE)
    elif source.kind is SourceKind.ENDPOINT:
        _read_endpoint(decoder, source, await _join(pieces))
    else:
        async for chunk, is_array in _chunks(source, pieces, decoder):
            for portion in _portions(chunk) if is_array else (chunk,):
                events = decoder.feed_array(portion) if is_array else decoder.feed(portion)
                yield events, len(portion)
    decoder.finish()
    yield 0, source.size if source.kind in READ_WHOLE else 0


def _portions(array: bytes) -> Iterator[bytes]:
    """Split a large array of events, because decoded events need much more memory than their text."""
    try:
        events = _ARRAY.decode(array) if len(array) > _PORTION_BYTES else []
    except (msgspec.DecodeError, RecursionError):  # counted when the array is decoded
        events = []
    if not events:
        yield array
        return
    step = -(-len(events) * _PORTION_BYTES // len(array))
    for start in range(0, len(events), step):
        yield b"[%b]" % b",".join(events[start : start + step])


async def _join(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def _whole_lines(source: Source, log: bytes) -> bytes:
    """Return a log without its last line, if the line may be incomplete."""
    return log[: log.rfind(b"\n") + 1] if source.kind is SourceKind.PACKED_LOG else log


async def _chunks(
    source: Source, pieces: AsyncIterator[bytes], decoder: EventDecoder
) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield chunks of whole lines, or a whole JSON array, and whether it is an array.

    Lines and arrays that are too large are skipped: a line to its end, an array completely.
    """
    chunk: list[bytes] = []
    size = 0
    is_array: bool | None = None
    skipping = False
    async for text in _texts(source, pieces, decoder):
        if skipping:
            if is_array or not (begin := text.find(b"\n") + 1):
                continue
            text, skipping = text[begin:], False  # noqa: PLW2901
        chunk.append(text)
        size += len(text)
        if is_array is None and (first := text.lstrip()[:1]):
            is_array = first == b"["
        cut = text.rfind(b"\n") + 1
        if size > MAX_WHOLE_BYTES and (is_array or not cut):
            decoder.count_gap(GapCode.EVENT_ARRAY_TOO_LARGE if is_array else GapCode.LINE_TOO_LONG)
            chunk, size, skipping = [], 0, True
        elif size >= _CHUNK_BYTES and cut and not is_array:
            chunk[-1] = text[:cut]
            yield b"".join(chunk), False
            chunk = [text[cut:]]
            size = len(text) - cut
    rest = b"".join(chunk)
    chunk.clear()
    yield rest, bool(is_array)


async def _texts(source: Source, pieces: AsyncIterator[bytes], decoder: EventDecoder) -> AsyncIterator[bytes]:
    """Yield the decompressed text of an object, in pieces of any length."""
    decompressor: GzipDecompressor | None = None
    is_first = True
    async for piece in pieces:
        if is_first:
            is_first, decompressor = False, decompressor_for(piece)
            if source.kind is SourceKind.PACKED_EVENTS and decompressor is None:
                if piece:
                    decoder.count_gap(GapCode.PACKED_EVENTS_DAMAGED)
                break
        for text in decompressor.feed(piece) if decompressor else _split(piece):
            yield text
        if decompressor and decompressor.broken:
            break  # nothing after the damage can be read
    if decompressor and decompressor.truncated:
        decoder.count_gap(GapCode.OBJECT_TRUNCATED, decompressor.name)


def _split(piece: bytes) -> Iterator[bytes]:
    return (piece[start : start + _CHUNK_BYTES] for start in range(0, len(piece), _CHUNK_BYTES))


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
