"""The format of a search index shard: a bitmap that tells which groups of units of log files have which rows.

    magic "RHSEARCH", version, length of the header
    header       a zstd frame of MessagePack: the units and their groups, and the sizes of the blocks
    blocks       zstd frames of up to 64 KiB, or nothing if no bit is set

A group is one large unit, or small ones that together have up to a quarter of a full unit: the bitmap of a small file
alone would be large compared with the file. A block has a column for every eight groups, in it one byte per row, and in
this byte one bit per group. A query reads the header and the blocks of its rows. Frames have zstd's checksum.
"""

import struct

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from rayhistory.errors import IndexDamaged
from rayhistory.search.grams import ROWS, RowRange, TextRows

MAX_GROUPS = 256
MAX_UNITS = 16_384
"""Maximum number of units in a shard, so that its header stays small."""
PREAMBLE_BYTES = 16
_BLOCK_BYTES = 64 << 10
_GROUPS_PER_UNIT = 4
_MAGIC, _VERSION = b"RHSEARCH", 3
_PREAMBLE = struct.Struct("<8sII")
_MAX_FRAME_BYTES = 64 << 20
_ZSTD_LEVEL = 3

Bitmap = npt.NDArray[np.uint8]


class IndexedUnit(msgspec.Struct, frozen=True, array_like=True):
    node: str
    path: str
    identity: str
    start: int
    end: int
    line_breaks: int
    group: int
    has_odd_case: bool
    """True if the unit has a non-ASCII letter that matches an ASCII letter if case is ignored."""


class ShardHeader(msgspec.Struct, array_like=True):
    units: list[IndexedUnit]
    unit_bytes: int
    groups: int
    block_bytes: list[int]
    """The size of each block in the file; 0 if no bit is set."""


class ShardBitmap:
    """The bitmap of a shard while it is built: one column per eight groups, one byte per row."""

    def __init__(self, unit_bytes: int) -> None:
        self.groups = 0
        self._unit_bytes = unit_bytes
        self._group_bytes = 0
        self._columns: list[Bitmap] = []

    def add(self, rows: TextRows, size: int) -> int:
        """Add the rows of the next unit, which has `size` bytes. Return its group."""
        self._group_bytes += size
        if self.groups == 0 or self._group_bytes > self._unit_bytes // _GROUPS_PER_UNIT:
            if self.groups % 8 == 0:
                self._columns.append(np.zeros(ROWS, np.uint8))
            self.groups, self._group_bytes = self.groups + 1, size
        rows.add_to(self._columns[-1], (self.groups - 1) % 8)
        return self.groups - 1

    def encode(self, units: list[IndexedUnit]) -> bytes:
        """Return the shard with these units."""
        compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress
        blocks = []
        size = block_rows(self.groups)
        for start in range(0, ROWS, size):
            parts = [column[start : start + size] for column in self._columns]
            has_rows = any(part.any() for part in parts)
            blocks.append(compress(np.concatenate(parts).tobytes()) if has_rows else b"")
        header = ShardHeader(units, self._unit_bytes, self.groups, list(map(len, blocks)))
        packed = compress(msgspec.msgpack.encode(header))
        return b"".join([_PREAMBLE.pack(_MAGIC, _VERSION, len(packed)), packed, *blocks])


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
    has_valid_groups = 0 < header.groups <= MAX_GROUPS and all(0 <= u.group < header.groups for u in header.units)
    if not has_valid_groups or len(header.block_bytes) * block_rows(header.groups) != ROWS:
        raise IndexDamaged("search index is damaged: inconsistent header")
    return header


def block_rows(groups: int) -> int:
    """Return the number of rows of a block. The fewer groups a shard has, the more rows fit into a block."""
    return _BLOCK_BYTES >> (_columns(groups) - 1).bit_length()


def block_of(rows: RowRange, groups: int) -> int:
    """Return the number of the block that has these rows. A range never needs two blocks."""
    return rows.start // block_rows(groups)


def groups_with(rows: RowRange, block: bytes, groups: int) -> npt.NDArray[np.bool_]:
    """Return for each group of a shard whether it has one of these rows. All of them are in this block."""
    if not block:
        return np.zeros(groups, np.bool_)
    bitmap, size = np.frombuffer(_decompress(block), np.uint8), block_rows(groups)
    if bitmap.size != _columns(groups) * size:
        raise IndexDamaged("search index is damaged: a block has another size than expected")
    first = rows.start % size
    found = bitmap.reshape(-1, size)[:, first : first + rows.stop - rows.start]
    bits = np.unpackbits(np.bitwise_or.reduce(found, axis=1), count=groups, bitorder="little")
    return bits.astype(np.bool_)


def _columns(groups: int) -> int:
    return (groups + 7) // 8


def _decompress(data: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MAX_FRAME_BYTES:
            raise IndexDamaged("search index is damaged: a frame is too large")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise IndexDamaged(f"search index is damaged: cannot decompress a frame ({error})") from None
