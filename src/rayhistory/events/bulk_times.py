"""Parse many of Ray's times at once. Separate from `times`, because collectors do not load Arrow."""

from array import array
from collections.abc import Sequence
from typing import Any, cast

from arro3.core import Array, DataType

from rayhistory.events.times import MAX_NS, parse_ns

_FULL_LENGTH = len("2026-11-15T19:13:29.421050000Z")
_DIGITS = b"0123456789"
_SEPARATORS = b"--T::.Z"
_LEAP_SECOND = ":60."
"""A part of every time with a leap second. Arrow would accept such times, but `parse_ns` rejects them."""
_UTF8, _TIMESTAMP, _INT64 = DataType.utf8(), DataType.timestamp("ns"), DataType.int64()


def parse_all(texts: Sequence[str]) -> Sequence[int | None]:
    """Return `parse_ns` of each time. If all are in UTC, Arrow parses them at once, which is much faster."""
    try:
        joined = "".join(texts)
        if len(joined) != _FULL_LENGTH * len(texts):
            texts = [text if len(text) == _FULL_LENGTH else _padded(text) for text in texts]
            joined = "".join(texts)
        if _LEAP_SECOND not in joined and joined.encode().translate(None, _DIGITS) == _SEPARATORS * len(texts):
            times = Array(texts, _UTF8).cast(_TIMESTAMP)
            numbers = _to_list(times.cast(_INT64)) if not times.null_count else []
            if numbers and min(numbers) >= -MAX_NS and max(numbers) <= MAX_NS:
                return numbers
    except ValueError:
        pass
    return list(map(parse_ns, texts))


def _to_list(numbers: Array) -> list[int]:
    """Return 64-bit integers, none of them NULL. This is six times as fast as `to_pylist`."""
    buffer = cast("Any", numbers).buffer()  # not in the type stubs of arro3
    return array("q", buffer.to_bytes()).tolist()


def _padded(text: str) -> str:
    whole, dot, fraction = text[:-1].partition(".")
    if text[-1:] != "Z" or len(whole) != 19 or len(fraction) > 9 or bool(dot) != bool(fraction):
        raise ValueError(text)
    return f"{whole}.{fraction:0<9}Z"
