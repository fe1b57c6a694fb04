"""Time ranges of charts end at the session's last sample."""

import pytest

from rayhistory.errors import UsageError
from rayhistory.metrics.time_ranges import SessionTimes, format_duration, parse_range, session_times, step_for

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


def sampled(first: int, *intervals: tuple[int, int]) -> list[int]:
    """Times in ms: (count, seconds) for each part."""
    times = [first]
    for count, seconds in intervals:
        times += [times[-1] + 1000 * seconds * (number + 1) for number in range(count)]
    return times


def test_steps_are_not_shorter_than_the_interval_of_samples() -> None:
    first = TIMES.first_ms
    times = session_times(first, [sampled(first, (240, 15)), sampled(first + 7, (240, 15))])
    assert times
    assert parse_range("now-30m", "now", times, 1000).step_ms == 15_000
    assert parse_range("now-24h", "now", times, 10).step_ms == 600_000


def test_first_minutes_are_shown_in_detail() -> None:
    """Collectors sample them more often."""
    first = TIMES.first_ms
    times = session_times(first, [sampled(first, (36, 5), (200, 15))])
    assert times
    assert parse_range("now-24h", "now", times, 1000).step_ms == 5_000
    assert parse_range("now-30m", "now", times, 1000).step_ms == 15_000
    later = session_times(first, [sampled(first + 7_200_000, (200, 15))])
    assert later
    assert later.min_step_ms(first, first + 3_600_000) == 0


def test_short_ranges_have_fine_steps() -> None:
    """Single samples may be closer together than usual."""
    times = session_times(TIMES.first_ms, [sampled(TIMES.first_ms, (240, 15))])
    assert times
    assert parse_range("now-2m", "now", times, 300).step_ms == 1_000


@pytest.mark.parametrize("clocks", [[], [[]], [[TIMES.first_ms]], [[TIMES.first_ms] * 3]])
def test_session_with_few_samples_has_no_interval(clocks: list[list[int]]) -> None:
    times = session_times(TIMES.first_ms, clocks)
    assert times is None or times.min_step_ms(0, 10**12) == 0
