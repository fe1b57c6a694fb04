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


class InheritedTimes:
    """The times of the nearest earlier lines that start with a time. Lines of a traceback, for example, have none.

    Positions are asked for in ascending order. So each line is parsed once, however many lines inherit a time.
    """

    def __init__(self, buffer: Content) -> None:
        self._buffer = buffer
        self._checked = 0
        """All lines that start before this position have been looked at, as far as they are near enough."""
        self._found = (-1, 0)
        """The last line with a time, and its time."""

    def before(self, position: int) -> int | None:
        """Return the time of the nearest line that starts at most 16 KiB before this start of a line."""
        first = max(0, position - _MAX_BACKWARD_BYTES)
        lowest, begin = max(first, self._checked), position
        while begin > lowest:
            line_break = self._buffer.rfind(b"\n", max(0, lowest - 1), begin - 1)
            if line_break < 0 < lowest:
                break
            end, begin = begin, line_break + 1
            found = line_ms(self._buffer[begin : min(end, begin + _MAX_PREFIX_BYTES)])
            if found is not None:
                self._found = begin, found
                break
        self._checked = max(self._checked, position)
        at, found_ms = self._found
        return found_ms if at >= first else None


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
