"""Conversion of Ray's times to nanoseconds since the epoch."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from arro3.core import Array, DataType

_SCALE: list[int] = [10 ** (9 - digits) for digits in range(10)]
_FULL_LENGTH = len("2026-11-15T19:13:29.421050000Z")
_MAX_CACHED_SECONDS = 50_000
_DIGITS = b"0123456789"
_SEPARATORS = b"--T::.Z"
_LEAP_SECOND = ":60."
"""Arrow accepts leap seconds, Python does not: times that contain one are parsed by Python, and rejected."""
_UTF8, _TIMESTAMP, _INT64 = DataType.utf8(), DataType.timestamp("ns"), DataType.int64()
_MAX_NS = 2**63 - 366 * 86_400 * 10**9
"""The largest accepted distance from 1970. 64 bits end a year later, in 2262; DuckDB reads the last as infinity."""


class _Seconds(dict[bytes, int]):
    """A cache of whole seconds: events of the same second share the expensive part of parsing."""

    def __missing__(self, text: bytes) -> int:
        second = int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp()) * 1_000_000_000
        if len(self) > _MAX_CACHED_SECONDS:
            self.clear()
        self[text] = second
        return second


_seconds = _Seconds()


def parse_ns(text: object) -> int | None:
    """Parse RFC 3339 with up to 9 digits of fraction; return None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        second = _seconds[text[:19].encode()]
    except ValueError:
        return None
    fraction = text[20:-1]
    if fraction.isdecimal() and len(fraction) < 10 and text[19] == "." and text[-1] == "Z":
        return _bounded(second + int(fraction) * _SCALE[len(fraction)])
    return _bounded(second) if text[19:] == "Z" else _with_offset(text)


def _bounded(ns: int) -> int | None:
    return ns if -_MAX_NS <= ns <= _MAX_NS else None


def parse_all(texts: Sequence[str]) -> Sequence[int | None]:
    """Return `parse_ns` of each, much faster if all are in UTC: then Arrow parses them at once."""
    try:
        joined = "".join(texts)
        if len(joined) != _FULL_LENGTH * len(texts):
            texts = list(map(_padded, texts))
            joined = "".join(texts)
        if _LEAP_SECOND not in joined and joined.encode().translate(None, _DIGITS) == _SEPARATORS * len(texts):
            times = Array(texts, _UTF8).cast(_TIMESTAMP)
            numbers = cast(list[int], times.cast(_INT64).to_pylist()) if not times.null_count else []
            if numbers and min(numbers) >= -_MAX_NS and max(numbers) <= _MAX_NS:
                return numbers
    except ValueError:
        pass
    return list(map(parse_ns, texts))


def valid_ms(value: object) -> int | None:
    """Return milliseconds as an integer, None if out of range. Ray writes 0 or an unsigned -1 for an unknown time."""
    return int(value) if isinstance(value, int | float) and 0 < value <= _MAX_NS // 1_000_000 else None


def ms_to_ns(value: object) -> int | None:
    ms = valid_ms(value)
    return ms * 1_000_000 if ms else None


def valid_seconds(value: float | str) -> int:
    """Return whole seconds; raise ValueError if they are out of range."""
    seconds = float(value)
    if not 0 <= seconds <= _MAX_NS // 1_000_000_000:
        raise ValueError(value)
    return int(seconds)


def _padded(text: str) -> str:
    whole, dot, fraction = text[:-1].partition(".")
    if text[-1:] != "Z" or len(whole) != 19 or len(fraction) > 9 or bool(dot) != bool(fraction):
        raise ValueError(text)
    return f"{whole}.{fraction:0<9}Z"


def _with_offset(text: str) -> int | None:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        return None
    return _bounded(int(parsed.timestamp()) * 1_000_000_000 + parsed.microsecond * 1000)
