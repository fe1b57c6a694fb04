"""The format of a search index shard: a bitmap that tells which units of log files have which rows.

    magic "RHSEARCH", version, length of the header
    header       a zstd frame of MessagePack: the units, and the sizes of the blocks
    blocks       1,024 zstd frames of 2,048 rows each, or nothing if no bit is set

A block has a column of 2,048 bytes for every eight units: one byte per row, and in it one bit per unit. A query reads
the header and the blocks of its rows. Frames have zstd's checksum.
"""

import struct

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from rayhistory.errors import IndexDamaged
from rayhistory.search.grams import ROWS, RowRange, TextRows

MAX_UNITS = 256
BLOCK_ROWS = 2048
PREAMBLE_BYTES = 16
_BLOCKS = ROWS // BLOCK_ROWS
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
    has_odd_case: bool
    """True if the unit has a non-ASCII letter that matches an ASCII letter if case is ignored."""


class ShardHeader(msgspec.Struct, array_like=True):
    units: list[IndexedUnit]
    unit_bytes: int
    block_bytes: list[int]
    """The size of each block in the file; 0 if no bit is set."""


class ShardBitmap:
    """The bitmap of a shard while it is built: one column per eight units, one byte per row."""

    def __init__(self) -> None:
        self._columns: list[Bitmap] = []
        self._units = 0

    def add(self, rows: TextRows) -> None:
        """Add the rows of the next unit."""
        if self._units % 8 == 0:
            self._columns.append(np.zeros(ROWS, np.uint8))
        rows.add_to(self._columns[-1], self._units % 8)
        self._units += 1

    def encode(self, units: list[IndexedUnit], unit_bytes: int) -> bytes:
        """Return the shard with these units, in the order in which their rows were added."""
        compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress
        blocks = []
        for start in range(0, ROWS, BLOCK_ROWS):
            parts = [column[start : start + BLOCK_ROWS] for column in self._columns]
            has_rows = any(part.any() for part in parts)
            blocks.append(compress(np.concatenate(parts).tobytes()) if has_rows else b"")
        header = compress(msgspec.msgpack.encode(ShardHeader(units, unit_bytes, list(map(len, blocks)))))
        return b"".join([_PREAMBLE.pack(_MAGIC, _VERSION, len(header)), header, *blocks])


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
    sizes_are_valid = len(header.block_bytes) == _BLOCKS and min(header.block_bytes) >= 0
    if not sizes_are_valid or len(header.units) > MAX_UNITS:
        raise IndexDamaged("search index is damaged: inconsistent header")
    return header


def block_of(rows: RowRange) -> int:
    """Return the number of the block that has these rows. A range never needs two blocks."""
    return rows.start // BLOCK_ROWS


def units_in(rows: RowRange, block: bytes, units: int) -> npt.NDArray[np.bool_]:
    """Return for each unit of a shard whether it has one of these rows. All of them are in this block."""
    if not block:
        return np.zeros(units, np.bool_)
    columns = (units + 7) // 8
    bitmap = np.frombuffer(_decompress(block), np.uint8)
    if bitmap.size != columns * BLOCK_ROWS:
        raise IndexDamaged("search index is damaged: a block has another size than expected")
    first = rows.start % BLOCK_ROWS
    found = bitmap.reshape(columns, BLOCK_ROWS)[:, first : first + rows.stop - rows.start]
    bits = np.unpackbits(np.bitwise_or.reduce(found, axis=1), count=units, bitorder="little")
    return bits.astype(np.bool_)


def _decompress(data: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MAX_FRAME_BYTES:
            raise IndexDamaged("search index is damaged: a frame is too large")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise IndexDamaged(f"search index is damaged: cannot decompress a frame ({error})") from None
