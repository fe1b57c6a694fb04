"""Times as Ray writes them, as nanoseconds since the epoch."""

from datetime import UTC, datetime

_seconds: dict[str, int] = {}


def parse_ns(text: object) -> int | None:
    """RFC 3339 in UTC with 0, 3, 6 or 9 digits of fraction; None for anything else.

    Events of one second share the expensive part, so it is remembered.
    """
    if not isinstance(text, str):
        return None
    second = _seconds.get(text[:19])
    if second is None:
        try:
            second = int(datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp())
        except ValueError:
            return None
        if len(_seconds) > 50_000:
            _seconds.clear()
        _seconds[text[:19]] = second
    rest = text[19:]
    if rest == "Z":
        return second * 1_000_000_000
    if rest[:1] != "." or rest[-1] != "Z":
        return _with_offset(text)
    fraction = rest[1:-1]
    if not fraction.isdigit() or len(fraction) > 9:
        return None
    return second * 1_000_000_000 + int(fraction.ljust(9, "0"))


def _with_offset(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
