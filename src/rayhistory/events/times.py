"""Times as Ray writes them, as nanoseconds since the epoch."""

from collections.abc import Sequence
from datetime import UTC, datetime

from arro3.core import Array, DataType

_SCALE: list[int] = [10 ** (9 - digits) for digits in range(10)]
_FULL = len("2026-11-15T19:13:29.421050000Z")
_DIGITS = b"0123456789"
_BETWEEN = b"--T::.Z"
_LEAP_SECOND = ":60."
"""Which Arrow can read, and Python cannot."""
_TEXT, _TIME, _NUMBER = DataType.utf8(), DataType.timestamp("ns"), DataType.int64()
_LAST = 2**63 - 366 * 86_400 * 10**9
"""What is further away from 1970, in nanoseconds, is no readable time: 64 bits end a year later, in 2262, and the last
of them mean infinity to some."""


class _Seconds(dict[bytes, int]):
    """Events of one second share the expensive part, so it is remembered."""

    def __missing__(self, text: bytes) -> int:
        second = int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp()) * 1_000_000_000
        if len(self) > 50_000:
            self.clear()
        self[text] = second
        return second


_seconds = _Seconds()


def parse_ns(text: object) -> int | None:
    """RFC 3339 in UTC with 0, 3, 6 or 9 digits of fraction; None for anything else."""
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
    return ns if -_LAST <= ns <= _LAST else None


def parse_all(texts: Sequence[str]) -> Sequence[int | None]:
    """`parse_ns` of each, at a fraction of the cost when all are written with a fraction: they are taken as one."""
    try:
        joined = "".join(texts)
        if len(joined) != _FULL * len(texts):
            texts = list(map(_padded, texts))
            joined = "".join(texts)
        if _LEAP_SECOND not in joined and joined.encode().translate(None, _DIGITS) == _BETWEEN * len(texts):
            times = Array(texts, _TEXT).cast(_TIME)
            numbers: list[int] = times.cast(_NUMBER).to_pylist() if not times.null_count else []
            if numbers and min(numbers) >= -_LAST and max(numbers) <= _LAST:
                return numbers
    except ValueError:
        pass
    return list(map(parse_ns, texts))


def milliseconds(value: object) -> int | None:
    """Ray writes 0 or -1 (as an unsigned number) for a time that is not known; a cluster may write anything."""
    return int(value) if isinstance(value, int | float) and 0 < value <= _LAST // 1_000_000 else None


def ns_of_ms(value: object) -> int | None:
    ms = milliseconds(value)
    return ms * 1_000_000 if ms else None


def seconds(value: float | str) -> int:
    """Whole ones; raises ValueError when they are none that a clock shows."""
    found = float(value)
    if not 0 <= found <= _LAST // 1_000_000_000:
        raise ValueError(value)
    return int(found)


def _padded(text: str) -> str:
    whole, dot, fraction = text[:-1].partition(".")
    if text[-1:] != "Z" or len(whole) != 19 or len(fraction) > 9 or bool(dot) != bool(fraction):
        raise ValueError(text)
    return f"{whole}.{fraction:0<9}Z"


def _with_offset(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return _bounded(int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000)
