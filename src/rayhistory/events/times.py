"""Convert Ray's times to nanoseconds since 1970."""

from datetime import UTC, datetime

_SCALE: list[int] = [10 ** (9 - digits) for digits in range(10)]
_MAX_CACHED_SECONDS = 50_000
MAX_NS = 2**63 - 366 * 86_400 * 10**9
"""Maximum distance from 1970, a year less than the largest 64-bit value (in 2262), which DuckDB reads as infinity."""


class _Seconds(dict[bytes, int]):
    """A cache of whole seconds, because events of the same second share the expensive part of parsing."""

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
    return ns if -MAX_NS <= ns <= MAX_NS else None


def valid_ms(value: object) -> int | None:
    """Return milliseconds as an integer; None if out of range. Ray writes 0 or an unsigned -1 for an unknown time."""
    return int(value) if isinstance(value, int | float) and 0 < value <= MAX_NS // 1_000_000 else None


def ms_to_ns(value: object) -> int | None:
    ms = valid_ms(value)
    return ms * 1_000_000 if ms else None


def valid_seconds(value: float | str) -> int:
    """Return whole seconds; raise ValueError if they are out of range."""
    seconds = float(value)
    if not 0 <= seconds <= MAX_NS // 1_000_000_000:
        raise ValueError(value)
    return int(seconds)


def _with_offset(text: str) -> int | None:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        return None
    return _bounded(int(parsed.timestamp()) * 1_000_000_000 + parsed.microsecond * 1000)
