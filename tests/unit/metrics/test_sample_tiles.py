"""Stored objects become tiles: a clock per object, and a matrix per metric."""

import numpy as np

from rayhistory.metrics.sample_tiles import HOUR_MS, MAX_TILE_OBJECTS, TileId, make_tile, tile_ids
from rayhistory.promql.values import NO_TIME
from support.stored_metrics import START_MS, samples

TILE_ID = TileId(0, 0, 0)


def test_objects_of_an_hour_share_a_tile() -> None:
    start = START_MS // HOUR_MS * HOUR_MS
    found = tile_ids([("b", start), ("a", start + 5), ("a", start + HOUR_MS)])
    assert found == [TileId(start // HOUR_MS, 0, 0)] * 2 + [TileId(start // HOUR_MS + 1, 0, 0)]


def test_second_object_of_a_node_in_an_hour_has_another_tile() -> None:
    assert [tile_id.repetition for tile_id in tile_ids([("a", 7), ("a", 5), ("b", 5)])] == [1, 0, 0]


def test_tiles_are_bounded() -> None:
    found = tile_ids([(f"{number:04d}", 0) for number in range(MAX_TILE_OBJECTS + 1)])
    assert [tile_id.group for tile_id in found] == [0] * MAX_TILE_OBJECTS + [1]


def test_shorter_clocks_end_without_times() -> None:
    tile = make_tile(TILE_ID, [("a", samples({("m", ()): [1.0]})), ("b", samples({("m", ()): [2.0, 3.0]}))])
    assert tile.clocks.times.tolist() == [[START_MS, NO_TIME], [START_MS, START_MS + 15_000]]
    assert (tile.clocks.first_ms, tile.clocks.last_ms) == (START_MS, START_MS + 15_000)
    np.testing.assert_equal(tile.metrics["m"].values, [[1.0, np.nan], [2.0, 3.0]])


def test_samples_are_sorted_and_the_last_of_equal_times_counts() -> None:
    stored = samples({("m", ()): [1.0, 2.0, 3.0]})
    stored.times = [2000, 1000, 2000]
    tile = make_tile(TILE_ID, [("a", stored)])
    assert tile.clocks.times.tolist() == [[1000, 2000]]
    assert tile.metrics["m"].values.tolist() == [[2.0, 3.0]]


def test_address_comes_from_the_most_frequent_label() -> None:
    stored = samples({("m", (("NodeAddress", "10.0.0.9"),)): [1.0], ("n", (("ip", "10.0.0.1"),)): [1.0]})
    assert make_tile(TILE_ID, [("a", stored), ("b", samples({("m", ()): [1.0]}))]).clocks.addresses == ["10.0.0.1", ""]


def test_memory_counts_values() -> None:
    tile = make_tile(TILE_ID, [("a", samples({("m", ()): [1.0] * 1000}))])
    assert 16_000 <= tile.memory_bytes() < 20_000
