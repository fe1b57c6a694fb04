"""SampleSelection of stored samples: the latest one at each step, or all samples of a window before each step."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from rayhistory.promql.values import Floats, Labels, Mask, SeriesBlock, Times, Vector, concatenate


def latest_samples(blocks: list[SeriesBlock], ends: Times, lookback_ms: int) -> tuple[Vector, Floats]:
    """Return the latest sample of each series at each step, and its time in seconds.

    Windows are open at their start. A series that is stale at its latest time has no sample.
    """
    vectors, sample_times = [], []
    for block in blocks:
        if not block.times.size:
            continue
        position = np.searchsorted(block.times, ends, side="right") - 1
        is_recent = (position >= 0) & (block.times[position] > ends - lookback_ms)
        present = np.broadcast_to(is_recent, (len(block.labels), ends.size)).copy()
        if block.present is not None:
            present &= block.present[:, position]
        vectors.append(Vector(block.labels, block.values[:, position], present))
        sample_times.append(np.broadcast_to(block.times[position] / 1000, present.shape))
    times = np.concatenate(sample_times) if sample_times else np.empty((0, ends.size))
    return concatenate(vectors, ends.size), times


class Windows:
    """The samples of some series in the window before each step: positions `left` to `right` of `times`."""

    def __init__(self, block: SeriesBlock, steps: Times, ends: Times, range_ms: int) -> None:
        self.labels: list[Labels] = block.labels
        self.times = block.times
        self.values = block.values
        self.steps = steps
        """The times at which the query is evaluated."""
        self.ends = ends
        """The ends of the windows: the steps, moved by `@` and `offset`."""
        self.range_ms = range_ms
        self.left = np.searchsorted(block.times, ends - range_ms, side="right")
        self.right = np.searchsorted(block.times, ends, side="right")

    @cached_property
    def counts(self) -> Times:
        return self.right - self.left

    @cached_property
    def first(self) -> Times:
        """Positions of the first samples; any valid position where a window is empty."""
        return np.minimum(self.left, self.times.size - 1)

    @cached_property
    def last(self) -> Times:
        return np.maximum(self.right - 1, 0)

    def filled(self, minimum: int = 1) -> Mask:
        """Return which windows have at least this many samples, for all series."""
        return np.broadcast_to(self.counts >= minimum, (len(self.labels), self.ends.size))

    def reduce(self, function: np.ufunc) -> Floats:
        """Reduce each window by a function of two numbers. The results of empty windows have no meaning."""
        bounds = np.stack([self.left, self.right], axis=1).ravel()
        padded = np.pad(self.values, ((0, 0), (0, 1)))  # a window may end behind the last sample
        reduced: Floats = function.reduceat(padded, bounds, axis=1)[:, ::2]
        return reduced

    def sums(self) -> Floats:
        """Sum each window with more digits than a float has, as Prometheus' compensated sums do."""
        padded = np.pad(self.values.astype(np.longdouble), ((0, 0), (0, 1)))
        bounds = np.stack([self.left, self.right], axis=1).ravel()
        return np.asarray(np.add.reduceat(padded, bounds, axis=1)[:, ::2], dtype=np.float64)

    def each(self) -> Iterator[tuple[int, slice]]:
        """Yield the number of each window that has samples, with their positions."""
        for step in np.flatnonzero(self.counts):
            yield int(step), slice(int(self.left[step]), int(self.right[step]))


def windows(blocks: list[SeriesBlock], steps: Times, ends: Times, range_ms: int) -> Iterator[Windows]:
    """Yield windows of series that have a sample at every time of their block; others are split by their gaps."""
    for block in blocks:
        for whole in _without_gaps(block):
            if whole.times.size and whole.labels:
                yield Windows(whole, steps, ends, range_ms)


def _without_gaps(block: SeriesBlock) -> Iterator[SeriesBlock]:
    if block.present is None or block.present.all():
        yield block
        return
    rows_by_mask: dict[bytes, list[int]] = {}
    for row, mask in enumerate(np.packbits(block.present, axis=1)):
        rows_by_mask.setdefault(mask.tobytes(), []).append(row)
    for rows in rows_by_mask.values():
        columns = block.present[rows[0]]
        labels = [block.labels[row] for row in rows]
        yield SeriesBlock(block.times[columns], labels, block.values[np.ix_(rows, columns)])
