"""Reading one source of the fold into rows, piece by piece, whatever state it is in."""

from collections.abc import AsyncIterator, Iterator

import msgspec
from isal import isal_zlib

from rayhistory.errors import LogNotFound, ObjectNotFound
from rayhistory.events import snapshots
from rayhistory.events.decode import EventDecoder, whole_lines
from rayhistory.events.logevents import add_log_lines
from rayhistory.events.rows import Rows
from rayhistory.index.sources import Kind, Source
from rayhistory.layout.packread import PackReader
from rayhistory.storage import Store

_PIECE = 4 << 20
_GZIP = b"\x1f\x8b"


async def read_source(store: Store, source: Source) -> AsyncIterator[tuple[Rows, int]]:
    """Rows of a source in portions, each with the number of events in it."""
    decoder = EventDecoder(source.key)
    if source.kind in (Kind.EVENT_LOG, Kind.PACKED_LOG):
        unreadable = add_log_lines(decoder.rows, await _log(store, source))
        if unreadable:
            decoder.set_aside("unreadable line", count=unreadable)
    elif source.kind is Kind.ENDPOINT:
        _read_endpoint(decoder, source, await store.get(source.key))
    else:
        seen = 0
        async for block in _blocks(store, source, decoder):
            decoder.feed(block)
            yield decoder.rows, decoder.events - seen
            seen = decoder.events
    yield decoder.finish(), 0


async def _log(store: Store, source: Source) -> bytes:
    if source.kind is Kind.EVENT_LOG:
        return await store.get(source.key)
    prefix, _, name = source.key.partition("#")
    reader = PackReader(store, prefix)
    await reader.refresh()
    try:
        data = await reader.read(name, 0, source.size)
    except LogNotFound as error:
        raise ObjectNotFound(str(error)) from None
    return data[: data.rfind(b"\n") + 1]  # the rest of the last line may be on its way


async def _blocks(store: Store, source: Source, decoder: EventDecoder) -> AsyncIterator[bytes]:
    """Blocks of whole lines of an object of any size, read piece by piece."""
    rest = b""
    unpack: Unpacker | None = None
    for start in range(0, max(source.size, 1), _PIECE):
        piece = await store.get_range(source.key, start, start + _PIECE)
        if start == 0 and piece[:2] == _GZIP:
            unpack = Unpacker()
        text = unpack.feed(piece) if unpack else piece
        last = start + _PIECE >= source.size
        if rest[:64].lstrip()[:1] == b"[" or (not rest and text[:64].lstrip()[:1] == b"["):
            rest += text
            continue
        cut = len(text) if last else text.rfind(b"\n") + 1
        if not cut:
            rest += text
            continue
        for block in whole_lines(_cut(rest + text[:cut])):
            yield block
        rest = text[cut:]
    if unpack and unpack.truncated:
        decoder.set_aside("truncated gzip")
    if rest.strip():
        yield rest


def _cut(data: bytes, size: int = 1 << 20) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


class Unpacker:
    """gunzip of any number of members; what comes after damage is lost, what came before is not."""

    def __init__(self) -> None:
        self._stream = isal_zlib.decompressobj(wbits=31)
        self._broken = False

    def feed(self, data: bytes) -> bytes:
        out = b""
        while data and not self._broken:
            if self._stream.eof:
                self._stream = isal_zlib.decompressobj(wbits=31)
            try:
                out += self._stream.decompress(data)
            except isal_zlib.error:  # type: ignore[misc]
                self._broken = True
                break
            data = self._stream.unused_data
        return out

    @property
    def truncated(self) -> bool:
        return self._broken or not self._stream.eof


def _read_endpoint(decoder: EventDecoder, source: Source, body: bytes) -> None:
    """An answer that KubeRay's collector kept: only the store knows when."""
    name = source.key.rpartition("/")[2].removeprefix("restful__")
    path, question, query = name.partition("?")
    uri = "/" + path.replace("__", "/") + question + query
    ns = int(source.modified * 1e9)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoder.set_aside("unreadable answer of the dashboard", uri)
        return
    decoder.rows.add("snapshots", (uri, ns, body.decode("utf-8", "replace")))
    problem = snapshots.add_rows(decoder.rows.add, uri, document, ns)
    if problem:
        decoder.set_aside(*problem)
