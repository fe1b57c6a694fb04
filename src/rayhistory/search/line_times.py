"""Parse the time at the start of a log line, in the common formats of Ray, Python, Kubernetes and structured logs."""

import re
from datetime import UTC, datetime, timedelta

from rayhistory.logs.source import Content

_MAX_PREFIX_BYTES = 160
_MAX_BACKWARD_BYTES = 16 << 10
_TIME = re.compile(
    rb"(?<![0-9])(20[0-9]{2})[-/](0[1-9]|1[0-2])[-/](0[1-9]|[12][0-9]|3[01])[ T]"
    rb"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = re.compile(rb'"(?:ts|time|timestamp|created)": ?"?(1[0-9]{9})(?:\.([0-9]{1,9})|([0-9]{3}))?["\s,}]')


def line_ms(line: Content) -> int | None:
    """Return the time that a line starts with, in ms since 1970, or None. Times without a time zone are UTC."""
    match = _TIME.search(line, 0, _MAX_PREFIX_BYTES)
    if match:
        return _to_ms(match)
    epoch = _EPOCH.search(line, 0, _MAX_PREFIX_BYTES) if b'"' in line[:_MAX_PREFIX_BYTES] else None
    return int(epoch[1]) * 1000 + int((epoch[3] or (epoch[2] or b"0")).ljust(3, b"0")[:3]) if epoch else None


def inherited_ms(buffer: Content, position: int) -> int | None:
    """Return the time of the nearest earlier line that starts with a time.

    Lines of a traceback, for example, have none.
    """
    first = max(0, position - _MAX_BACKWARD_BYTES)
    while position > first:
        begin = buffer.rfind(b"\n", first, position - 1) + 1
        begin = begin or first
        found = line_ms(buffer[begin : min(position, begin + _MAX_PREFIX_BYTES)])
        if found is not None:
            return found
        position = begin
    return None


def _to_ms(match: "re.Match[bytes]") -> int | None:
    try:
        moment = datetime(*(int(match[number]) for number in range(1, 7)), tzinfo=UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return None  # such as February 31
    zone = match[8]
    if zone and zone != b"Z":
        digits = zone[1:].replace(b":", b"")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        moment = moment - offset if zone[:1] == b"+" else moment + offset
    return int(moment.timestamp()) * 1000 + int((match[7] or b"0").ljust(3, b"0")[:3])
