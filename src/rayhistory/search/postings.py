"""The format of a search index shard: which units of log files have which keys.

    magic "RHSEARCH", version, length of the header
    header       a zstd frame of MessagePack: the units, and the locations of the sections below
    tokens       a zstd frame: all distinct tokens, sorted, one per line
    buckets      256 zstd frames, by the highest byte of the key: keys, their number of units, and the units

A query reads the header, the tokens, and the buckets of its keys. Frames have zstd's checksum.
"""

import struct
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from rayhistory.errors import IndexDamaged
from rayhistory.search.tokens import Keys

BUCKETS = 256
MAX_UNITS = 256
PREAMBLE_BYTES = 16
_MAGIC, _VERSION = b"RHSEARCH", 2
_PREAMBLE = struct.Struct("<8sII")
_MAX_FRAME_BYTES = 256 << 20
_ZSTD_LEVEL = 3

Units = npt.NDArray[np.uint16]


class IndexedUnit(msgspec.Struct, frozen=True, array_like=True):
    node: str
    path: str
    identity: str
    start: int
    end: int
    line_breaks: int


class ShardHeader(msgspec.Struct, array_like=True):
    units: list[IndexedUnit]
    unit_bytes: int
    tokens: tuple[int, int]
    """Location of the tokens: offset after the header, and size."""
    buckets: list[tuple[int, int]]


def encode_shard(units: list[IndexedUnit], unit_bytes: int, keys: list[Keys], tokens: Iterable[bytes]) -> bytes:
    """Encode a shard. `keys` has the token keys of each unit."""
    compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress
    all_keys = np.concatenate([np.empty(0, np.uint32), *keys])
    numbers = np.repeat(np.arange(len(keys), dtype=np.uint16), [len(each) for each in keys])
    order = np.argsort(all_keys, kind="stable")
    all_keys, numbers = all_keys[order], numbers[order]
    parts = [compress(b"\n".join(sorted(tokens)))]
    edges = np.searchsorted(all_keys >> 24, np.arange(BUCKETS + 1))
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        parts.append(compress(_encode_bucket(all_keys[begin:end], numbers[begin:end])))
    places, offset = [], 0
    for part in parts:
        places.append((offset, len(part)))
        offset += len(part)
    header = compress(msgspec.msgpack.encode(ShardHeader(units, unit_bytes, places[0], places[1:])))
    return b"".join([_PREAMBLE.pack(_MAGIC, _VERSION, len(header)), header, *parts])


def _encode_bucket(keys: Keys, numbers: Units) -> bytes:
    distinct, first, counts = np.unique(keys, return_index=True, return_counts=True)
    deltas = np.diff(distinct, prepend=np.uint32(0)).astype("<u4")
    steps = np.diff(numbers.astype(np.int32), prepend=0)
    steps[first] = numbers[first]
    columns = deltas.view(np.uint8).reshape(-1, 4).T.tobytes()  # bytes of the same weight compress well together
    return struct.pack("<I", len(distinct)) + columns + counts.astype("<u2").tobytes() + steps.astype("<u2").tobytes()


def header_bytes(preamble: bytes) -> int:
    """Return the size of the header, from the first bytes of a shard."""
    magic, version, size = _PREAMBLE.unpack(preamble[:PREAMBLE_BYTES])
    if magic != _MAGIC or version != _VERSION or size > _MAX_FRAME_BYTES:
        raise IndexDamaged("search index is damaged: a shard begins with other bytes than expected")
    return int(size)


def decode_header(data: bytes) -> ShardHeader:
    try:
        header = msgspec.msgpack.decode(_decompress(data), type=ShardHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IndexDamaged(f"search index is damaged: cannot decode a header ({error})") from None
    if len(header.buckets) != BUCKETS or len(header.units) > MAX_UNITS:
        raise IndexDamaged("search index is damaged: inconsistent header")
    return header


def decode_tokens(data: bytes) -> bytes:
    """Return all tokens, one per line."""
    return _decompress(data)


class Bucket:
    """The keys of one bucket, and their units."""

    def __init__(self, data: bytes) -> None:
        raw = _decompress(data)
        (count,) = struct.unpack_from("<I", raw) if len(raw) >= 4 else (1 << 31,)
        if len(raw) < 4 + 6 * count:
            raise IndexDamaged("search index is damaged: truncated bucket")
        columns = np.frombuffer(raw, np.uint8, 4 * count, 4).reshape(4, count)
        deltas = np.ascontiguousarray(columns.T).view("<u4").reshape(-1)
        self.keys: Keys = np.cumsum(deltas, dtype=np.uint32)
        counts = np.frombuffer(raw, "<u2", count, 4 + 4 * count)
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._steps = np.frombuffer(raw, "<u2", -1, 4 + 6 * count)
        if len(self._steps) != (self._ends[-1] if count else 0):
            raise IndexDamaged("search index is damaged: inconsistent bucket")

    def units(self, key: int) -> set[int]:
        place = int(np.searchsorted(self.keys, np.uint32(key)))
        if place == len(self.keys) or self.keys[place] != key:
            return set()
        begin = int(self._ends[place - 1]) if place else 0
        return set(np.cumsum(self._steps[begin : int(self._ends[place])], dtype=np.int64).tolist())


def _decompress(data: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MAX_FRAME_BYTES:
            raise IndexDamaged("search index is damaged: a frame is too large")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise IndexDamaged(f"search index is damaged: cannot decompress a frame ({error})") from None
