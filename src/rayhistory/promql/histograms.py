"""Classic histograms: quantiles and fractions from buckets with upper bounds (`le`)."""

import math
from collections.abc import Callable

import numpy as np

from rayhistory.promql.arrays import Floats
from rayhistory.promql.labels import Labels, metric_name
from rayhistory.promql.values import Vector

_SMALL_DELTA = 1e-12
"""Maximum relative decrease between buckets that is treated as a rounding error."""

Warn = Callable[[str], None]
OfBuckets = Callable[[Floats, Floats, int], float]
"""A function of upper bounds, cumulative counts and the number of the step."""


def bucket_quantile(bounds: Floats, counts: Floats, quantile: float) -> float:
    """Return the quantile of a classic histogram, interpolated inside its bucket."""
    if math.isnan(quantile):
        return math.nan
    if quantile < 0 or quantile > 1:
        return math.copysign(math.inf, quantile)
    if not _is_complete(bounds, counts):
        return math.nan
    rank = quantile * counts[-1]
    bucket = int(np.searchsorted(counts[:-1], rank, side="left"))
    if bucket == len(counts) - 1:
        return float(bounds[-2])
    if bucket == 0 and bounds[0] <= 0:
        return float(bounds[0])
    start, below = (float(bounds[bucket - 1]), float(counts[bucket - 1])) if bucket else (0.0, 0.0)
    share = (rank - below) / (counts[bucket] - below) if counts[bucket] != below else math.nan
    return float(start + (bounds[bucket] - start) * share)


def bucket_fraction(bounds: Floats, counts: Floats, low: float, high: float) -> float:
    """Return the share of observations between two values.

    A bucket without a finite bound counts completely or not at all.
    """
    if math.isnan(low) or math.isnan(high) or bounds[-1] != math.inf or not counts[-1] > 0:
        return math.nan
    if low >= high:
        return 0.0
    observed = _rank_of(bounds, counts, high, is_low=False) - _rank_of(bounds, counts, low, is_low=True)
    return max(0.0, observed / float(counts[-1]))


def _rank_of(bounds: Floats, counts: Floats, value: float, *, is_low: bool) -> float:
    """Return the number of observations up to a value, interpolated inside its bucket."""
    if math.isinf(value):
        return float(counts[-1]) if value > 0 else 0.0
    bucket = int(np.searchsorted(bounds, value, side="left"))
    below = float(counts[bucket - 1]) if bucket else 0.0
    start = float(bounds[bucket - 1]) if bucket else (0.0 if bounds[0] > 0 else -math.inf)
    end, count = float(bounds[bucket]), float(counts[bucket])
    if value == end:
        return count
    if value <= start:
        return below
    if math.isinf(start) or math.isinf(end):
        return count if is_low and math.isinf(start) else below
    return below + (count - below) * (value - start) / (end - start)


def _is_complete(bounds: Floats, counts: Floats) -> bool:
    """Return whether there are at least two buckets, a last one without an upper bound, and observations."""
    return len(bounds) >= 2 and bounds[-1] == math.inf and counts[-1] > 0 and not math.isnan(counts[-1])


class Histograms:
    """The classic histograms in a vector, by their labels without `le`."""

    def __init__(self, vector: Vector, function: str, warn: Warn) -> None:
        self._vector = vector
        self._warn = warn
        self._function = function
        self._rows: dict[Labels, list[tuple[float, int]]] = {}
        for row, labels in enumerate(vector.labels):
            bound = dict(labels).get("le", "")
            parsed = _parse_bound(bound)
            if parsed is None:
                warn(
                    f'PromQL warning: bucket label "le" is missing or has a malformed value of "{bound}" '
                    f'for metric name "{metric_name(labels)}"'
                )
                continue
            key = tuple(pair for pair in labels if pair[0] != "le")
            self._rows.setdefault(key, []).append((parsed, row))

    def map(self, function: OfBuckets) -> Vector:
        """Call a function for each histogram and step."""
        steps = self._vector.values.shape[1]
        values = np.full((len(self._rows), steps), np.nan)
        present = np.zeros((len(self._rows), steps), dtype=bool)
        for number, buckets in enumerate(self._rows.values()):
            buckets.sort()
            bounds = np.array([bound for bound, _ in buckets])
            rows = [row for _, row in buckets]
            counts, exist = self._vector.values[rows], self._vector.present[rows]
            present[number] = exist.any(axis=0)
            for step in np.flatnonzero(present[number]):
                chosen = exist[:, step]
                unique_bounds, joined = _join_equal_bounds(bounds[chosen], counts[chosen, step])
                values[number, step] = function(unique_bounds, self._monotonic(unique_bounds, joined), int(step))
        return Vector(list(self._rows), values, present).drop_names()

    def _monotonic(self, bounds: Floats, counts: Floats) -> Floats:
        """Raise counts that are lower than those of smaller buckets."""
        highest = np.maximum.accumulate(np.where(np.isnan(counts), -np.inf, counts))
        lower = counts < highest
        if lower.any():
            close = np.abs(counts - highest) <= _SMALL_DELTA * np.maximum(np.abs(counts), np.abs(highest))
            if (lower & ~close).any():
                self._warn(f"PromQL info: input to {self._function} needed to be fixed for monotonicity")
            counts = np.where(lower, highest, counts)
        return counts


def _join_equal_bounds(bounds: Floats, counts: Floats) -> tuple[Floats, Floats]:
    if len(np.unique(bounds)) == len(bounds):
        return bounds, counts
    unique, groups = np.unique(bounds, return_inverse=True)
    return unique, np.asarray(np.bincount(groups, weights=counts), dtype=np.float64)


def _parse_bound(text: str) -> float | None:
    try:
        bound = float(text.replace("Inf", "inf"))
    except ValueError:
        return None
    return None if math.isnan(bound) or "_" in text else bound
