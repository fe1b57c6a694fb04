"""Times as Ray writes them, as nanoseconds since the epoch."""

from datetime import UTC, datetime

_seconds: dict[str, int] = {}
_SCALE: list[int] = [10 ** (9 - digits) for digits in range(10)]


def parse_ns(text: object) -> int | None:
    """RFC 3339 in UTC with 0, 3, 6 or 9 digits of fraction; None for anything else.

    Events of one second share the expensive part, so it is remembered.
    """
    if not isinstance(text, str):
        return None
    second = _seconds.get(text[:19]) or _new_second(text[:19])
    if second is None:
        return None
    fraction = text[20:-1]
    if fraction.isdecimal() and len(fraction) < 10 and text[19] == "." and text[-1] == "Z":
        return second + int(fraction) * _SCALE[len(fraction)]
    return second if text[19:] == "Z" else _with_offset(text)


def _new_second(text: str) -> int | None:
    try:
        second = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000_000
    except ValueError:
        return None
    if len(_seconds) > 50_000:
        _seconds.clear()
    _seconds[text] = second
    return second


def _with_offset(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
