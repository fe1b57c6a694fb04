"""Tiles: samples of several nodes for about an hour, by metric. Samples that were read are held in memory as tiles.

A tile has one clock (a row of times) per stored object, and a matrix per metric with one row per series. So a query
reads the series of all nodes at once.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from rayhistory.metrics.samples import SampledSeries, Samples
from rayhistory.promql.arrays import Floats, Mask, Rows, Times
from rayhistory.promql.label_table import Codes, LabelColumn, LabelTable
from rayhistory.promql.values import NO_TIME

HOUR_MS = 3_600_000
MAX_TILE_OBJECTS = 128
_ADDRESS_LABELS = ("ip", "NodeAddress", "node_ip")
"""Labels in which Ray's metrics have the node's address, most frequent first."""
_LABEL_BYTES = 4


class TileClocks(msgspec.Struct):
    """The times of the objects of a tile."""

    hour: int
    """The hour of the tile. Tiles of the same hour have different nodes."""
    nodes: list[str]
    addresses: list[str]
    """The address of each node as its metrics report it; empty if they do not."""
    times: Times
    """One row per object, ascending; shorter rows end with NO_TIME."""

    @property
    def first_ms(self) -> int:
        return int(self.times.min(initial=NO_TIME))

    @property
    def last_ms(self) -> int:
        return int(np.where(self.times < NO_TIME, self.times, -1).max(initial=-1))


class TileMetric(msgspec.Struct):
    """The series of one metric in a tile."""

    labels: LabelTable
    clock: Rows
    values: Floats

    def chosen(self, rows: Mask) -> "TileMetric":
        if rows.all():
            return self
        return TileMetric(self.labels.take(rows), self.clock[rows], self.values[rows])


class SampleTile(msgspec.Struct):
    clocks: TileClocks
    metrics: dict[str, TileMetric]
    types: dict[str, str]
    dropped: int
    """The number of series that a node did not store because it had too many, as the maximum over all nodes."""

    def without_samples(self) -> "SampleTile":
        """Return the tile with the labels of its series only."""
        metrics = {
            name: TileMetric(each.labels, each.clock, np.empty((len(each.labels), 0)))
            for name, each in self.metrics.items()
        }
        return SampleTile(self.clocks, metrics, self.types, self.dropped)

    def memory_bytes(self) -> int:
        per_row = (len(each.labels) * (8 + _LABEL_BYTES * len(each.labels.columns)) for each in self.metrics.values())
        return sum(each.values.nbytes for each in self.metrics.values()) + sum(per_row) + self.clocks.times.nbytes


class TileId(msgspec.Struct, frozen=True, order=True):
    """Identifies a tile.

    `repetition` is the number of earlier objects that the node of each object has in the same hour. `group` numbers the
    tiles into which the objects of many nodes are divided.
    """

    hour: int
    repetition: int
    group: int


def tile_ids(objects: Sequence[tuple[str, int]]) -> list[TileId]:
    """Return the tile of each object, given its node and the time of its first sample.

    A node with two collectors has several objects in an hour. They go to different tiles.
    """
    repetitions: dict[tuple[str, int], int] = defaultdict(int)
    counts: dict[tuple[int, int], int] = defaultdict(int)
    found: dict[int, TileId] = {}
    for number in sorted(range(len(objects)), key=lambda number: objects[number]):
        node, first_ms = objects[number]
        hour = first_ms // HOUR_MS
        repetition = repetitions[node, hour]
        repetitions[node, hour] += 1
        found[number] = TileId(hour, repetition, counts[hour, repetition] // MAX_TILE_OBJECTS)
        counts[hour, repetition] += 1
    return [found[number] for number in range(len(objects))]


def make_tile(tile_id: TileId, objects: Sequence[tuple[str, Samples]]) -> SampleTile:
    """Make a tile of objects. No node may have more than one of them."""
    orders = [_order(samples.times) for _, samples in objects]
    width = max((len(order) for order in orders), default=0)
    times = np.full((len(objects), width), NO_TIME, dtype=np.int64)
    rows: dict[str, list[tuple[int, SampledSeries]]] = {}
    for clock, ((_, samples), order) in enumerate(zip(objects, orders, strict=True)):
        times[clock, : len(order)] = np.array(samples.times, dtype=np.int64)[order]
        for series in samples.series:
            rows.setdefault(series.name, []).append((clock, series))
    clocks = TileClocks(
        tile_id.hour, [node for node, _ in objects], [_address(samples) for _, samples in objects], times
    )
    types = {name: kind for _, samples in objects for name, kind in samples.types.items()}
    dropped = max((samples.dropped for _, samples in objects), default=0)
    return SampleTile(clocks, {name: _metric(found, orders, width) for name, found in rows.items()}, types, dropped)


def _order(times: list[int]) -> Rows:
    """Return the positions of the times in ascending order. Of samples with the same time, only the last one counts."""
    values = np.array(times, dtype=np.int64)
    if (np.diff(values) > 0).all():
        return np.arange(len(values))
    _, from_end = np.unique(values[::-1], return_index=True)
    return np.asarray(len(values) - 1 - from_end, dtype=np.intp)


def _address(samples: Samples) -> str:
    for name in _ADDRESS_LABELS:
        for series in samples.series:
            if address := series.labels.get(name):
                return address
    return ""


def _metric(rows: list[tuple[int, SampledSeries]], orders: list[Rows], width: int) -> TileMetric:
    clock = np.array([number for number, _ in rows], dtype=np.intp)
    labels = table_of([series.labels for _, series in rows])
    values = np.full((len(rows), width), np.nan)
    for row, (number, series) in enumerate(rows):
        column = np.frombuffer(series.values, dtype="<f8")
        order = orders[number]
        values[row, : len(order)] = column if len(order) == len(column) and _is_range(order) else column[order]
    return TileMetric(labels, clock, values)


def _is_range(order: Rows) -> bool:
    return len(order) == 0 or bool(order[0] == 0 and order[-1] == len(order) - 1 and (np.diff(order) == 1).all())


def table_of(rows: Sequence[dict[str, str]]) -> LabelTable:
    """Return the labels of rows as columns. Most rows have the same label names."""
    names = list(dict.fromkeys(name for labels in rows for name in labels))
    columns = {}
    for name in names:
        numbers = {"": 0}
        codes = [numbers.setdefault(labels.get(name, ""), len(numbers)) for labels in rows]
        columns[name] = LabelColumn(list(numbers), np.array(codes, dtype=np.int32))
    return LabelTable(columns, len(rows))


def constant(text: str, size: int) -> tuple[list[str], Codes]:
    """Return a column that has the same text for all series."""
    return [text], np.zeros(size, dtype=np.int32)
