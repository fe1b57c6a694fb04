"""The 5-grams of a text (all sequences of five bytes), as rows of a bitmap.

Each byte is reduced to a code of 4 bits, so that upper and lower case are equal and hexadecimal digits stay distinct.
The row of a 5-gram consists of its codes: the first byte has the lowest bits. So a text of three bytes, which may be
the end of many 5-grams, has consecutive rows. The highest bit is set if the last three bytes are letters or similar
bytes. It keeps words apart from numbers: random ids fill half of the bitmap, but not the rows of words.

numpy computes the rows of all positions at once. No text is split into words, and no 5-gram is stored.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rayhistory.logs.source import Content

GRAM_BYTES = 5
MIN_TEXT_BYTES = 3
"""Minimum length of a text that can be found by its rows."""
ROWS = 1 << 21
_UNKNOWN = bytes(GRAM_BYTES - MIN_TEXT_BYTES)
_CODE_BITS = 4
_LETTER_BIT = np.uint8(0x40)
_CHUNK_BYTES = 128 << 10  # its arrays stay in the processor's cache
_MIN_TABLE_BYTES = 512 << 10

Rows = npt.NDArray[np.int64]
RowTable = npt.NDArray[np.bool_]
"""Marks the rows of a text."""


class RowRange(NamedTuple):
    """Consecutive rows. A text contains at least one of their 5-grams."""

    start: int
    stop: int


class TextRows(NamedTuple):
    """The rows of a text: as a list with duplicates if the text is short, otherwise as a table."""

    rows: Rows | None
    table: RowTable | None

    def add_to(self, column: npt.NDArray[np.uint8], bit: int) -> None:
        """Set a bit in these rows of a column. This changes the table."""
        if self.table is not None:
            bits = self.table.view(np.uint8)
            bits *= np.uint8(1 << bit)
            column |= bits
        elif self.rows is not None:
            column[self.rows] |= np.uint8(1 << bit)


def read_rows(text: Content, start: int, end: int) -> TextRows:
    """Return the rows of all 5-grams in text[start:end], and of its first bytes after two unknown ones."""
    if end - start < MIN_TEXT_BYTES:
        return TextRows(None, None)
    if end - start < _MIN_TABLE_BYTES:
        return TextRows(np.concatenate([_gram_rows(piece) for piece in _pieces(text, start, end)]), None)
    table = np.zeros(ROWS, np.bool_)
    for piece in _pieces(text, start, end):
        table[_gram_rows(piece)] = True
    return TextRows(None, table)


def _pieces(text: Content, start: int, end: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield pieces of a text that overlap, so that each 5-gram is in one of them."""
    data, first_end = np.frombuffer(text, np.uint8), min(end, start + _CHUNK_BYTES)
    yield np.frombuffer(_UNKNOWN + bytes(text[start:first_end]), np.uint8)
    for begin in range(first_end, end, _CHUNK_BYTES):
        yield data[max(start, begin - GRAM_BYTES + 1) : min(begin + _CHUNK_BYTES, end)]


def literal_rows(text: bytes) -> list[RowRange]:
    """Return ranges of rows. Every text that contains this one has a row in each range. Empty if it is too short."""
    if len(text) < MIN_TEXT_BYTES:
        return []
    rows = _gram_rows(np.frombuffer(_UNKNOWN + text, np.uint8)).tolist()
    unknown = max(0, GRAM_BYTES - len(text))
    size = 1 << (_CODE_BITS * unknown)
    return [RowRange(row - row % size, row - row % size + size) for row in rows[len(_UNKNOWN) - unknown :]]


def _gram_rows(text: npt.NDArray[np.uint8]) -> Rows:
    """Return the row of each 5-gram. Operations are on the narrowest integers, because those are the fastest.

    The bit that differs between upper and lower case is in neither the codes nor the marks of letters.
    """
    codes = text >> np.uint8(6)
    codes *= np.uint8(9)
    codes += text
    codes &= np.uint8(15)
    pairs = codes[1:] * np.uint8(16)  # a shift of bytes takes ten times as long
    pairs |= codes[:-1]
    letters = text & _LETTER_BIT
    last = letters[2:] & letters[1:-1]
    last &= letters[:-2]
    last >>= np.uint8(2)
    last |= codes[2:]
    wide_pairs = pairs.astype(np.uint16)
    first_four = wide_pairs[2:] * np.uint16(256)
    first_four |= wide_pairs[:-2]
    rows = last[2:].astype(np.uint32)
    rows *= np.uint32(1 << 16)
    rows |= first_four[:-1]
    return rows.astype(np.int64)
