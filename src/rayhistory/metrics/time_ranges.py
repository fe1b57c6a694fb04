"""Time ranges of charts: Grafana's `from` and `to`, and the step between two points."""

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from rayhistory.errors import UsageError

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE = re.compile(r"now(?:-(\d{1,6})([smhdw]))?(?:/[smhdwMy])?")
_ABSOLUTE = re.compile(r"([0-9]{10,15})(\.[0-9]{1,15})?")  # Ray's frontends divide, and send fractions
_STEPS_MS = tuple(
    seconds * 1000
    for seconds in (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
)
_SCRAPE_INTERVAL_MS = 15_000
MIN_POINTS, MAX_POINTS = 10, 2_000
_MIN_INTERVALS = 20
"""If a range has at least this many samples of a node, the step is not shorter than the time between two samples."""
_CLOSER = 0.7
_EARLY_MS = 240_000
"""Time after the start of a session in which collectors sample more often."""


class TimeRange(msgspec.Struct, frozen=True):
    """Times in ms, both inclusive; start and end are multiples of the step."""

    start_ms: int
    end_ms: int
    step_ms: int

    @property
    def rate_interval_ms(self) -> int:
        """Grafana's `$__rate_interval`: at least four scrapes, so that a rate has samples."""
        return max(self.step_ms + _SCRAPE_INTERVAL_MS, 4 * _SCRAPE_INTERVAL_MS)


class SessionTimes(msgspec.Struct, frozen=True):
    """The times of a session's samples, in ms. The last one is used as *now*."""

    first_ms: int
    last_ms: int
    interval_ms: int = 0
    """The usual time between two samples of a node; 0 if unknown."""
    fine_until_ms: int = 0
    """Until this time, the interval between two samples may be shorter."""

    def min_step_ms(self, start_ms: int, end_ms: int) -> int:
        """Return the smallest useful step: between two samples, a chart has nothing to show."""
        if start_ms < self.fine_until_ms or end_ms - start_ms < _MIN_INTERVALS * self.interval_ms:
            return 0
        return max((step for step in _STEPS_MS if step <= 1.1 * self.interval_ms), default=0)


def session_times(first_ms: int, clocks: Sequence[Sequence[int]]) -> SessionTimes | None:
    """Return the times of a session, derived from the last samples of some nodes; None without samples."""
    clocks = [sorted(clock) for clock in clocks if clock]
    if not clocks:
        return None
    gaps = [(after - before, after) for clock in clocks for before, after in pairwise(clock)]
    interval = sorted(gap for gap, _ in gaps)[len(gaps) // 2] if gaps else 0
    fine_until = max((after for gap, after in gaps if gap < _CLOSER * interval), default=0)
    if min(clock[0] for clock in clocks) > first_ms:
        fine_until = max(fine_until, first_ms + _EARLY_MS)
    return SessionTimes(first_ms, max(clock[-1] for clock in clocks), interval, fine_until)


def parse_range(start: str, end: str, times: SessionTimes, points: int) -> TimeRange:
    """Parse a range. A relative range does not start before the session, so that short sessions fill the chart."""
    first, last = parse_time(start, times.last_ms), parse_time(end, times.last_ms)
    if start.startswith("now"):
        first = max(first, times.first_ms)
    if last <= first:
        if not start.startswith("now"):
            raise UsageError(f"time range from {start} to {end} is empty")
        first = last - 1000
    step = max(step_for(last - first, points), times.min_step_ms(first, last))
    return TimeRange(first // step * step, -(-last // step) * step, step)


def parse_time(text: str, now_ms: int) -> int:
    """Parse milliseconds since 1970, or a time relative to now such as `now-5m`."""
    if absolute := _ABSOLUTE.fullmatch(text):
        return int(absolute[1])
    found = _RELATIVE.fullmatch(text)
    if found is None:
        raise UsageError(f"invalid time {text[:40]!r}: use milliseconds since 1970, or a relative time such as now-5m")
    return now_ms - (int(found[1]) * _UNIT_MS[found[2]] if found[1] else 0)


def step_for(range_ms: int, points: int) -> int:
    """Return the smallest round step with at most this many points."""
    points = min(MAX_POINTS, max(MIN_POINTS, points))
    return next((step for step in _STEPS_MS if range_ms / step <= points), -(-range_ms // points))


def format_duration(milliseconds: int) -> str:
    """Format a duration for PromQL, exactly."""
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
