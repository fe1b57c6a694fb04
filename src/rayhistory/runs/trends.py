"""Statistics of runs: robust, because a fleet has few runs of each job, and some of them are odd."""

from collections.abc import Sequence
from statistics import median

import msgspec

MIN_BASELINE = 4
"""Earlier good runs that a regression is judged by."""
MAX_BASELINE = 20
MIN_RATIO = 1.2
MIN_SLOWER_MS = 10_000
SPREADS = 3.0
_MAD_TO_SIGMA = 1.4826
_MIN_SPREAD = 0.03
"""The spread is at least this share of the median: few runs can be equal by chance."""


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """A run that took longer than the good runs before it, beyond their spread."""

    duration_ms: int
    baseline_ms: float
    """The median of the good runs before."""
    ratio: float
    limit_ms: float
    runs: int
    """How many runs the baseline has."""


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile, between two values by their distance; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation as the median absolute deviation tells it: one odd run does not change it."""
    middle = median(values)
    return max(_MAD_TO_SIGMA * median(abs(value - middle) for value in values), _MIN_SPREAD * middle)


def find_regression(duration_ms: int, earlier_ms: Sequence[float]) -> Regression | None:
    """Compare a run with the good runs before it, the newest last.

    It is slower if it took 20 % and 10 s more than their median, and more than three spreads.
    """
    baseline = list(earlier_ms)[-MAX_BASELINE:]
    if len(baseline) < MIN_BASELINE:
        return None
    middle = median(baseline)
    limit = max(middle * MIN_RATIO, middle + MIN_SLOWER_MS, middle + SPREADS * _widened(baseline))
    if duration_ms <= limit:
        return None
    return Regression(
        duration_ms=duration_ms, baseline_ms=middle, ratio=round(duration_ms / max(middle, 1), 3),
        limit_ms=round(limit, 1), runs=len(baseline),
    )  # fmt: skip


def _widened(values: Sequence[float]) -> float:
    """Return the spread, wider for few values: the deviation of a handful is often too small by chance."""
    return spread(values) * (1 + 2 / len(values))
