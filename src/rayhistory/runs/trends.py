"""Statistics of runs. They are robust, because a job may have few runs and outliers."""

from collections.abc import Sequence
from statistics import median

import msgspec

MIN_BASELINE = 4
"""Minimum number of earlier successful runs to detect a regression."""
MAX_BASELINE = 20
MIN_RATIO = 1.2
MIN_SLOWER_MS = 10_000
SPREADS = 3.0
_MAD_TO_SIGMA = 1.4826
_MIN_SPREAD = 0.03
"""Minimum spread, as a share of the median, because few runs can be equal by chance."""


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """A run that took longer than the earlier successful runs, by more than their usual variation."""

    duration_ms: int
    baseline_ms: float
    """The median of the earlier successful runs."""
    ratio: float
    limit_ms: float
    runs: int
    """The number of runs in the baseline."""


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile, interpolated between two values; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def spread(values: Sequence[float]) -> float:
    """Estimate the standard deviation from the median absolute deviation, which outliers hardly change."""
    middle = median(values)
    return max(_MAD_TO_SIGMA * median(abs(value - middle) for value in values), _MIN_SPREAD * middle)


def find_regression(duration_ms: int, earlier_ms: Sequence[float]) -> Regression | None:
    """Compare a run with earlier successful runs, newest last.

    It is slower if it exceeds their median by 20 %, by 10 s and by three times their spread.
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
    """Return the spread, increased if there are few values, because few values are often close by chance."""
    return spread(values) * (1 + 2 / len(values))
