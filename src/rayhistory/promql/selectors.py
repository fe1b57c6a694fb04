"""Selection of stored samples: the latest one at each step, or all samples of a window before each step."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rayhistory.promql.arrays import Floats, Mask, Rows, Times
from rayhistory.promql.label_table import LabelTable
from rayhistory.promql.labels import Labels
from rayhistory.promql.values import NO_TIME, SeriesSet, Vector, concatenate

_Element = TypeVar("_Element", bound=np.generic)


def latest_samples(series_sets: list[SeriesSet], ends: Times, lookback_ms: int) -> Vector:
    """Return the latest sample of each series at each step.

    Windows are open at their start. A series that is stale at its latest time has no sample.
    """
    vectors = []
    for series_set in series_sets:
        if series_set.times.size:
            latest = _Latest(series_set, ends, lookback_ms)
            vectors.append(Vector(series_set.labels, latest.picked.take(series_set.values), latest.present))
    return concatenate(vectors, ends.size)


def latest_times(series_sets: list[SeriesSet], ends: Times, lookback_ms: int) -> Vector:
    """Return the time of the latest sample of each series at each step, in seconds."""
    vectors = []
    for series_set in series_sets:
        if series_set.times.size:
            latest = _Latest(series_set, ends, lookback_ms)
            vectors.append(Vector(series_set.labels, latest.picked.expand(latest.times / 1000), latest.present))
    return concatenate(vectors, ends.size)


class _Latest:
    """The positions and times of the latest samples, by clock (row of times) and step."""

    def __init__(self, series_set: SeriesSet, ends: Times, lookback_ms: int) -> None:
        times = np.atleast_2d(series_set.times)
        position = sample_positions(times, ends) - 1
        self.picked = Picked(series_set.clock, np.maximum(position, 0), len(series_set.labels))
        self.times = np.take_along_axis(times, np.maximum(position, 0), axis=1)
        is_recent = (position >= 0) & (self.times > ends - lookback_ms)
        self.present = self.picked.expand(is_recent)
        if series_set.present is not None:
            self.present = self.present & self.picked.take(series_set.present)


def sample_positions(times: Times, ends: Times) -> Rows:
    """Return, for each clock (row of times) and each end, the number of times that are not after this end."""
    if len(times) == 1:
        return np.searchsorted(times[0], ends, side="right")[None, :]
    low = min(int(times[:, 0].min()), int(ends.min()))
    span = max(int(np.where(times < NO_TIME, times, low).max()), int(ends.max())) - low + 2
    shift = (np.arange(len(times), dtype=np.int64) * span)[:, None]  # so that all clocks are one sorted list
    ordered = np.where(times < NO_TIME, times - low, span - 1) + shift
    found = np.searchsorted(ordered.ravel(), (ends - low + shift).ravel(), side="right").reshape(len(times), -1)
    return np.asarray(found - (np.arange(len(times)) * times.shape[1])[:, None], dtype=np.intp)


class Picked:
    """Positions of samples by clock and step, and the samples of all series at these positions."""

    def __init__(self, clock: Rows | None, positions: Rows, series: int) -> None:
        self._clock = clock
        self._positions = positions
        self._series = series

    def take(self, matrix: NDArray[_Element]) -> NDArray[_Element]:
        if self._clock is None:
            return matrix[:, self._positions[0]]
        steps = self._positions.shape[1]
        if (self._positions == self._positions[:, :1] + np.arange(steps)).all():  # a step is as long as an interval
            runs = np.lib.stride_tricks.sliding_window_view(matrix, steps, axis=1)
            found: NDArray[_Element] = runs[np.arange(len(matrix)), self._positions[self._clock, 0]]
            return found
        flat = self._positions[self._clock]
        flat += (np.arange(len(matrix)) * matrix.shape[1])[:, None]
        picked: NDArray[_Element] = matrix.ravel().take(flat)
        return picked

    def expand(self, by_clock: NDArray[_Element]) -> NDArray[_Element]:
        """Convert an array with one row per clock to one with a row per series."""
        if self._clock is None:
            return np.broadcast_to(by_clock[0], (self._series, by_clock.shape[1]))
        return by_clock[self._clock]


class Windows:
    """The samples of some series in the window before each step: positions `left` to `right` of `times`.

    Times and positions have one row per clock.
    """

    def __init__(self, series_set: SeriesSet, steps: Times, ends: Times, range_ms: int) -> None:
        self.labels: Sequence[Labels] = series_set.labels
        self.times = np.atleast_2d(series_set.times)
        self.values = series_set.values
        self.clock = series_set.clock
        self.steps = steps
        """The times at which the query is evaluated."""
        self.ends = ends
        """The ends of the windows: the steps, shifted by `@` and `offset`."""
        self.range_ms = range_ms
        self.left = sample_positions(self.times, ends - range_ms)
        self.right = sample_positions(self.times, ends)

    @cached_property
    def counts(self) -> Rows:
        counts: Rows = self.right - self.left
        return counts

    @cached_property
    def first(self) -> Rows:
        """Positions of the first samples. For an empty window, any valid position."""
        return np.asarray(np.minimum(self.left, self.times.shape[1] - 1), dtype=np.intp)

    @cached_property
    def last(self) -> Rows:
        return np.maximum(self.right - 1, 0)

    def times_at(self, positions: Rows) -> Times:
        """Return sample times. `positions` has one position per step for each clock (row of `times`)."""
        return np.take_along_axis(self.times, positions, axis=1)

    def take(self, positions: Rows, matrix: "Floats | None" = None) -> Floats:
        """Return the values of all series at one position per clock and step."""
        return Picked(self.clock, positions, len(self.labels)).take(self.values if matrix is None else matrix)

    def expand(self, by_clock: NDArray[_Element]) -> NDArray[_Element]:
        return Picked(self.clock, self.left, len(self.labels)).expand(by_clock)

    def filled(self, minimum: int = 1) -> Mask:
        """Return which windows have at least this many samples, for all series."""
        return self.expand(self.counts >= minimum)

    def reduce(self, function: np.ufunc, values: "Floats | None" = None) -> Floats:
        """Reduce each window by a function of two numbers. Results of empty windows are undefined."""
        padded = np.pad(self.values if values is None else values, ((0, 0), (0, 1)))  # a window may end behind the last
        bounds = np.stack([self.expand(self.left), self.expand(self.right)], axis=2).reshape(len(self.labels), -1)
        bounds = bounds + (np.arange(len(self.labels)) * padded.shape[1])[:, None]
        reduced = function.reduceat(padded.ravel(), bounds.ravel())[::2]
        return np.asarray(reduced.reshape(len(self.labels), -1), dtype=np.float64)

    def sums(self) -> Floats:
        """Sum each window with more precision than a float, like Prometheus' compensated sums."""
        return self.reduce(np.add, self.values.astype(np.longdouble))

    def each(self) -> Iterator[tuple[Rows | slice, int, slice, int]]:
        """Yield series, step, positions and clock of each window that has samples."""
        for clock in range(len(self.times)):
            rows = slice(None) if self.clock is None else np.flatnonzero(self.clock == clock)
            for step in np.flatnonzero(self.counts[clock]):
                yield rows, int(step), slice(int(self.left[clock, step]), int(self.right[clock, step])), clock


def windows(series_sets: list[SeriesSet], steps: Times, ends: Times, range_ms: int) -> Iterator[Windows]:
    """Yield windows of series. A series with gaps gets separate times, so that a window has only its own samples."""
    for series_set in series_sets:
        for whole in _without_gaps(series_set):
            if whole.times.size and whole.labels:
                yield Windows(whole, steps, ends, range_ms)


def _without_gaps(series_set: SeriesSet) -> Iterator[SeriesSet]:
    if series_set.present is None or not series_set.labels:
        yield series_set
        return
    times = np.atleast_2d(series_set.times)
    clock = np.zeros(len(series_set.labels), dtype=np.intp) if series_set.clock is None else series_set.clock
    has_gaps: Mask = np.any(~series_set.present & (times < NO_TIME)[clock], axis=1)
    if not has_gaps.any():
        yield SeriesSet(series_set.times, series_set.labels, series_set.values, None, series_set.clock)
        return
    if not has_gaps.all():
        yield _rows(series_set, ~has_gaps)
    yield _compacted(times, clock[has_gaps], _labels(series_set.labels, has_gaps), series_set, has_gaps)


def _rows(series_set: SeriesSet, chosen: Mask) -> SeriesSet:
    clock = None if series_set.clock is None else series_set.clock[chosen]
    return SeriesSet(series_set.times, _labels(series_set.labels, chosen), series_set.values[chosen], None, clock)


def _labels(labels: Sequence[Labels], chosen: Mask) -> Sequence[Labels]:
    if isinstance(labels, LabelTable):
        return labels.take(chosen)
    return [each for each, is_chosen in zip(labels, chosen.tolist(), strict=True) if is_chosen]


def _compacted(times: Times, clock: Rows, labels: Sequence[Labels], series_set: SeriesSet, chosen: Mask) -> SeriesSet:
    """Close the gaps in each series by moving its samples to the left.

    Series of one clock that have the same gaps share their new row of times.
    """
    assert series_set.present is not None  # noqa: S101
    present, values = series_set.present[chosen], series_set.values[chosen]
    masks = np.concatenate([np.packbits(present, axis=1), clock[:, None].astype(np.int32).view(np.uint8)], axis=1)
    keys = np.ascontiguousarray(masks).view(np.dtype((np.void, masks.shape[1]))).ravel()
    _, first, new_clock = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(~present[first], axis=1, kind="stable")
    counts = present[first].sum(axis=1)
    width = max(1, int(counts.max(initial=1)))
    order = order[:, :width]
    own = np.take_along_axis(times[clock[first]], order, axis=1)
    own[np.arange(width) >= counts[:, None]] = NO_TIME
    picked = Picked(new_clock, order, len(values))
    return SeriesSet(own, labels, picked.take(values), None, new_clock)
