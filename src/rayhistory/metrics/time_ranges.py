"""Time ranges of charts: Grafana's `from` and `to`, and the step between two points."""

import re

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
MAX_POINTS = 2_000


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
    """The times of the first and last sample of a session, in ms. The last one is used as *now*."""

    first_ms: int
    last_ms: int


def parse_range(start: str, end: str, times: SessionTimes, points: int) -> TimeRange:
    """Parse a range. A relative range does not start before the session, so that short sessions fill the chart."""
    first, last = parse_time(start, times.last_ms), parse_time(end, times.last_ms)
    if start.startswith("now"):
        first = max(first, times.first_ms)
    if last <= first:
        if not start.startswith("now"):
            raise UsageError(f"time range from {start} to {end} is empty")
        first = last - 1000
    step = step_for(last - first, points)
    return TimeRange(first // step * step, -(-last // step) * step, step)


def parse_time(text: str, now_ms: int) -> int:
    """Parse milliseconds since 1970, or a time relative to now such as `now-5m`."""
    if absolute := _ABSOLUTE.fullmatch(text):
        return int(absolute[1])
    found = _RELATIVE.fullmatch(text)
    if found is None:
        raise UsageError(f"invalid time {text[:40]!r}: use milliseconds since 1970, or now-5m")
    return now_ms - (int(found[1]) * _UNIT_MS[found[2]] if found[1] else 0)


def step_for(range_ms: int, points: int) -> int:
    """Return the smallest round step with at most this many points."""
    points = min(MAX_POINTS, max(10, points))
    return next((step for step in _STEPS_MS if range_ms / step <= points), -(-range_ms // points))


def format_duration(milliseconds: int) -> str:
    """Format a duration for PromQL, exactly."""
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
