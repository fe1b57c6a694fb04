"""The rows of a search index that a unit must have for a pattern to match in it."""

import re

import msgspec
import numpy as np

from rayhistory.logs.source import Content
from rayhistory.search.grams import MIN_TEXT_BYTES, RowRange, literal_rows

MAX_RANGES = 16
"""Maximum number of ranges that a search reads. Further ones of long texts would exclude hardly any more units."""
ODD_CASES = ("\u212a".encode(), "\u017f".encode())
"""Non-ASCII letters that match k and s if case is ignored."""
_ASCII = re.compile(rb"[\x00-\x7f]+")


class RequiredRows(msgspec.Struct, frozen=True):
    ranges: list[RowRange]
    """A unit with a match has a row in each range."""
    or_odd_case: bool
    """True if a unit with one of the ODD_CASES may match without these rows."""


def required_rows(literal: str, *, case: bool) -> RequiredRows | None:
    """Return the rows that a text requires which every match contains. None if the text is too short.

    If case is ignored, only the ASCII parts of the text are used, because other letters change their bytes.
    """
    text = literal.encode()
    parts = [text] if case else _ASCII.findall(text)
    ranges = [each for part in parts if len(part) >= MIN_TEXT_BYTES for each in literal_rows(part)]
    if not ranges:
        return None
    odd = not case and not {ord("k"), ord("s")}.isdisjoint(text.lower())
    return RequiredRows(_spread(ranges, MAX_RANGES), odd)


def has_odd_case(text: Content) -> bool:
    """Return whether a text has one of the ODD_CASES."""
    is_ascii = len(text) == 0 or np.frombuffer(text, np.uint8).max() < 0x80
    return not is_ascii and any(text.find(letter) >= 0 for letter in ODD_CASES)


def _spread(ranges: list[RowRange], count: int) -> list[RowRange]:
    """Return at most `count` ranges from all parts of the text."""
    step = max(1.0, len(ranges) / count)
    return [ranges[int(number * step)] for number in range(min(count, len(ranges)))]
