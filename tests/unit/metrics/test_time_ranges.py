"""Time ranges of charts end at the session's last sample."""

import pytest

from rayhistory.errors import UsageError
from rayhistory.metrics.time_ranges import SessionTimes, format_duration, parse_range, step_for

TIMES = SessionTimes(first_ms=1_794_770_000_000, last_ms=1_794_773_600_000)


def test_now_is_the_last_sample() -> None:
    found = parse_range("now-5m", "now", TIMES, 300)
    assert (found.start_ms, found.end_ms, found.step_ms) == (TIMES.last_ms - 300_000, TIMES.last_ms, 1_000)


def test_relative_range_starts_with_a_short_session() -> None:
    assert parse_range("now-24h", "now", TIMES, 300).start_ms == TIMES.first_ms // 15_000 * 15_000


def test_absolute_range_is_kept() -> None:
    found = parse_range("1794760000000", "1794770000000", TIMES, 100)
    assert found.start_ms <= 1794760000000
    assert found.end_ms >= 1794770000000
    assert (found.end_ms - found.start_ms) / found.step_ms <= 102


def test_session_with_one_sample_has_a_range() -> None:
    found = parse_range("now-5m", "now", SessionTimes(5_000, 5_000), 300)
    assert found.start_ms < found.end_ms


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("yesterday", "now"),
        ("now-5x", "now"),
        ("1", "now"),
        ("1794770000000", "1794760000000"),
        ("now-" + "9" * 30 + "d", "now"),
    ],
)
def test_invalid_ranges_are_refused(start: str, end: str) -> None:
    with pytest.raises(UsageError):
        parse_range(start, end, TIMES, 300)


@pytest.mark.parametrize(
    ("range_ms", "points", "step"), [(300_000, 300, 1_000), (86_400_000, 300, 300_000), (10**12, 10, 10**11)]
)
def test_steps_are_round_and_bounded(range_ms: int, points: int, step: int) -> None:
    assert step_for(range_ms, points) == step


def test_durations_are_exact_in_queries() -> None:
    assert [format_duration(ms) for ms in (15_000, 1_500)] == ["15s", "1500ms"]


def test_fractions_of_milliseconds_are_accepted() -> None:
    """Ray's job page divides times and sends the result."""
    assert parse_range("1794770000000.5", "1794770060000.25", TIMES, 300) == parse_range(
        "1794770000000", "1794770060000", TIMES, 300
    )
