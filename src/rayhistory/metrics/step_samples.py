"""The samples that a chart needs of an instant selector: the latest one at each step.

A day has twenty times as many samples as its chart has steps. So all other samples are dropped as soon as a tile is
read. Results of queries do not change.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from rayhistory.metrics.sample_tiles import TileClocks, TileMetric
from rayhistory.metrics.series_join import TiledMetric
from rayhistory.promql.arrays import Rows, Times
from rayhistory.promql.selectors import Picked, sample_positions

_MIN_SAVING = 4
"""Minimum ratio of samples to steps in a tile. Below it, all samples are kept."""


class StepSamples(msgspec.Struct, frozen=True):
    """Metrics for which a query needs only the latest sample at each of these times (ascending)."""

    times: Times
    metrics: frozenset[str]


class StepPositions(msgspec.Struct):
    """Positions of the samples of a tile that are the latest ones at some step, and their times."""

    positions: Rows
    clocks: TileClocks

    def taken(self, metric: TileMetric) -> TileMetric:
        values = Picked(metric.clock, self.positions, len(metric.labels)).take(metric.values)
        return TileMetric(metric.labels, metric.clock, values)


def step_positions(clocks: TileClocks, steps: Times) -> StepPositions | None:
    """Find the samples of a tile that are the latest ones at some step; None if that leaves out few samples.

    All steps after the end of the tile have the same latest sample, so only the first of them is used. Times may
    repeat.
    """
    first, last = np.searchsorted(steps, (clocks.first_ms, clocks.last_ms)).tolist()
    own = steps[first : last + 1]
    if not own.size or _MIN_SAVING * own.size > clocks.times.shape[1]:
        return None
    positions = np.maximum(sample_positions(clocks.times, own) - 1, 0)
    times = np.take_along_axis(clocks.times, positions, axis=1)
    return StepPositions(positions, TileClocks(clocks.hour, clocks.nodes, clocks.addresses, times))


def connected(tiled: Sequence[TiledMetric]) -> list[TiledMetric]:
    """Put tiles of consecutive hours together if they have the same series, as most tiles of a session do."""
    return [_one(run) for run in _runs(tiled)]


def _runs(tiled: Sequence[TiledMetric]) -> Iterator[list[TiledMetric]]:
    run: list[TiledMetric] = []
    for each in tiled:
        if run and not _continues(run[-1], each):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _continues(before: TiledMetric, after: TiledMetric) -> bool:
    (clocks, metric), (next_clocks, next_metric) = before, after
    return (
        metric.labels is next_metric.labels
        and metric.clock is next_metric.clock
        and clocks.nodes == next_clocks.nodes
        and bool((clocks.times[:, -1:] <= next_clocks.times[:, :1]).all())
    )


def _one(run: list[TiledMetric]) -> TiledMetric:
    (clocks, metric), *others = run
    if not others:
        return run[0]
    times = np.concatenate([each.times for each, _ in run], axis=1)
    values = np.concatenate([each.values for _, each in run], axis=1)
    return TileClocks(clocks.hour, clocks.nodes, clocks.addresses, times), TileMetric(
        metric.labels, metric.clock, values
    )
