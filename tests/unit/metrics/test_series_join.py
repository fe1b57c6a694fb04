"""Tiles are joined in time: each series once, its samples in order."""

import numpy as np

from rayhistory.metrics.sample_tiles import SampleTile, TileId, make_tile
from rayhistory.metrics.series_join import TiledMetric, join
from rayhistory.promql.values import NO_TIME, SeriesSet
from support.stored_metrics import Columns, samples


def tile(hour: int, start_ms: int, columns: dict[str, Columns]) -> SampleTile:
    stored = [(node, samples(each, start_ms, 1000)) for node, each in columns.items()]
    return make_tile(TileId(hour, 0, 0), stored)


def each(hour: int, start_ms: int, columns: dict[str, Columns]) -> TiledMetric:
    made = tile(hour, start_ms, columns)
    return made.clocks, made.metrics["m"]


def joined(*tiled: TiledMetric, start_ms: int = 0, end_ms: int = 10**9) -> SeriesSet:
    found = join(tiled, start_ms, end_ms)
    assert found is not None
    return found


A, B = ("m", (("s", "a"),)), ("m", (("s", "b"),))


def test_series_continue_in_the_next_tile() -> None:
    block = joined(each(1, 3000, {"n": {A: [3.0]}}), each(0, 1000, {"n": {A: [1.0, 2.0]}}))
    assert block.times.tolist() == [[1000, 2000, 3000]]
    assert block.values.tolist() == [[1.0, 2.0, 3.0]]


def test_series_that_begin_later_are_missing_before() -> None:
    block = joined(each(0, 1000, {"n": {A: [1.0]}}), each(1, 2000, {"n": {A: [2.0], B: [5.0]}}))
    np.testing.assert_equal(block.values, [[1.0, 2.0], [np.nan, 5.0]])
    assert block.present is not None
    assert block.present.tolist() == [[True, True], [False, True]]


def test_nodes_with_different_counts_have_clocks_without_holes() -> None:
    block = joined(
        each(0, 1000, {"n": {A: [1.0]}, "o": {B: [1.0, 2.0]}}), each(1, 5000, {"n": {A: [5.0]}, "o": {B: [5.0]}})
    )
    assert block.times.tolist() == [[1000, 5000, NO_TIME], [1000, 2000, 5000]]
    np.testing.assert_equal(block.values, [[1.0, 5.0, np.nan], [1.0, 2.0, 5.0]])


def test_two_collectors_of_a_node_are_merged_by_time() -> None:
    """Both sampled the same node at overlapping times; of equal times the later object counts."""
    block = joined(each(0, 1000, {"n": {A: [1.0, 2.0, 3.0]}}), each(0, 2000, {"n": {A: [20.0, 30.0, 40.0]}}))
    assert block.times.tolist() == [[1000, 2000, 3000, 4000]]
    assert block.values.tolist() == [[1.0, 20.0, 30.0, 40.0]]


def test_equal_labels_of_two_nodes_stay_two_series() -> None:
    block = joined(each(0, 1000, {"n": {A: [1.0]}}), each(0, 1000, {"o": {A: [2.0]}}))
    assert len(block.labels) == 2
    assert block.values.tolist() == [[1.0], [2.0]]


def test_times_outside_are_left_out() -> None:
    stored = each(0, 1000, {"n": {A: [1.0, 2.0, 3.0]}})
    assert joined(stored, start_ms=2000, end_ms=2500).values.tolist() == [[2.0]]
    assert join([stored], 5000, 6000) is None
    assert join([], 0, 10) is None
