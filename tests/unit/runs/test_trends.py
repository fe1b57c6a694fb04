"""Regressions are found beyond the spread of good runs, and nothing else is."""

import pytest

from rayhistory.runs.trends import find_regression, percentile, spread

STEADY = [600_000.0, 610_000.0, 595_000.0, 605_000.0, 600_000.0]


def test_run_beyond_ratio_difference_and_spread_is_a_regression() -> None:
    found = find_regression(800_000, STEADY)
    assert found
    assert (found.baseline_ms, found.ratio, found.runs) == (600_000, 1.333, 5)


@pytest.mark.parametrize(
    ("duration_ms", "earlier"),
    [
        (700_000, STEADY),  # below 20 %
        (9_000, [3_000.0] * 8),  # below 10 s
        (900_000, STEADY[:3]),  # too few runs
        (900_000, [400_000.0, 800_000.0, 500_000.0, 900_000.0, 600_000.0]),  # within the spread
    ],
)
def test_small_or_usual_differences_are_none(duration_ms: int, earlier: list[float]) -> None:
    assert find_regression(duration_ms, earlier) is None


def test_one_odd_run_does_not_widen_the_spread() -> None:
    assert find_regression(800_000, [*STEADY, 3_000_000.0])
    assert spread([*STEADY, 3_000_000.0]) < 60_000


def test_new_normal_is_no_regression() -> None:
    assert find_regression(800_000, [*STEADY, *[800_000.0] * 20]) is None


def test_percentiles_interpolate() -> None:
    assert percentile([], 0.5) is None
    assert percentile([5.0], 0.95) == 5.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
