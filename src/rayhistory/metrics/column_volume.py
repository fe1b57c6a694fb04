"""An open volume of metrics columns: which tiles it has, and the samples of one metric in some of them.

Tiles of the same hour are read together, because a chart shows all nodes.
"""

import asyncio
from collections.abc import Collection, Hashable, Iterable
from itertools import islice
from typing import Protocol

import msgspec
import numpy as np

from rayhistory.metrics.column_file import (
    BLOCK_COLUMNS,
    LABELS,
    VALUES,
    Chunk,
    ColumnDirectory,
    Span,
    blocks_of,
    decode_directory,
    decode_labels,
    decode_values,
)
from rayhistory.metrics.sample_tiles import SampleTile, TileClocks, TileMetric
from rayhistory.metrics.samples import MetricsDamaged
from rayhistory.metrics.series_join import TiledMetric
from rayhistory.metrics.step_samples import StepPositions, connected
from rayhistory.promql.arrays import Floats, Rows
from rayhistory.promql.label_table import LabelTable, concatenate_tables
from rayhistory.promql.values import NO_TIME

_MAX_GROUP_NODES = 1024


class StoredColumns(Protocol):
    """The files of one build of a session's columns."""

    @property
    def build(self) -> str: ...

    @property
    def files(self) -> dict[str, int]:
        """Names and sizes of the files."""

    async def read(self, name: str, start: int, end: int) -> bytes: ...


class TileGroup(msgspec.Struct):
    """Tiles of one hour with different nodes."""

    rows: dict[int, int]
    """By tile: the position of its first row in `clocks.times`."""
    clocks: TileClocks
    span: Span
    """The times of the first and last sample."""


class Window(msgspec.Struct, frozen=True):
    """The samples of a group between two times: some columns of each of its tiles."""

    group: TileGroup
    columns: tuple[tuple[int, Span], ...]
    """By tile: its first column, and the end of its columns."""
    clocks: TileClocks


class Frames(msgspec.Struct):
    """Chunks of one metric in a window, and their compressed labels and blocks of values."""

    window: Window
    chunks: list[Chunk]
    labels: tuple[bytes, ...]
    values: list[list[memoryview]]


class Volume(msgspec.Struct):
    stored: StoredColumns
    prefix: str
    directory: ColumnDirectory
    clocks: list[TileClocks]
    """The sample times of each tile."""
    groups: list[TileGroup]

    def between(self, span: Span) -> tuple[int, ...]:
        """Return the groups that have samples between two times."""
        start, end = span
        return tuple(n for n, each in enumerate(self.groups) if each.span[0] <= end and each.span[1] >= start)

    def window(self, number: int, span: Span) -> Window:
        """Return the columns of a group that have samples between two times, rounded to whole blocks."""
        group = self.groups[number]
        if span[0] <= group.span[0] and group.span[1] <= span[1]:
            return Window(group, tuple((tile, (0, self.width(tile))) for tile in group.rows), group.clocks)
        times, columns = group.clocks.times, list[tuple[int, Span]]()
        for tile, row in group.rows.items():
            own = times[row : row + len(self.clocks[tile].nodes)]
            found = np.flatnonzero(((own >= span[0]) & (own <= span[1])).any(axis=0))
            first = int(found[0]) // BLOCK_COLUMNS * BLOCK_COLUMNS if found.size else 0
            end = (int(found[-1]) // BLOCK_COLUMNS + 1) * BLOCK_COLUMNS if found.size else 0
            columns.append((tile, (first, min(end, self.width(tile)))))
        cut = np.full((len(times), max(end - first for _, (first, end) in columns)), NO_TIME, dtype=np.int64)
        for tile, (first, end) in columns:
            rows = slice(group.rows[tile], group.rows[tile] + len(self.clocks[tile].nodes))
            cut[rows, : end - first] = times[rows, first:end]
        clocks = TileClocks(group.clocks.hour, group.clocks.nodes, group.clocks.addresses, cut)
        return Window(group, tuple(columns), clocks)

    def width(self, tile: int) -> int:
        return int(self.clocks[tile].times.shape[1])

    def chunks(self, name: str, groups: Iterable[int]) -> dict[int, list[Chunk]]:
        """Return the chunks of a metric by group. Groups without the metric are left out."""
        all_chunks = self.directory.metrics.get(name, [])
        found = {number: [each for each in all_chunks if each.tile in self.groups[number].rows] for number in groups}
        return {number: each for number, each in found.items() if each}

    def key(self, *more: Hashable) -> Hashable:
        return self.stored.build, self.prefix, *more

    def tile(self, groups: Collection[int], clocks: TileClocks, metrics: dict[str, TileMetric]) -> SampleTile:
        tiles = self.directory.tiles
        dropped = max((tiles[tile].dropped for number in groups for tile in self.groups[number].rows), default=0)
        return SampleTile(clocks, metrics, self.directory.types, dropped)

    async def frames(self, chunks: dict[int, list[Chunk]], windows: dict[int, Window]) -> list[Frames]:
        """Read labels and values: one request each, because the frames of a metric are adjacent."""
        blocks: list[list[Span]] = []
        for number, some in chunks.items():
            columns = dict(windows[number].columns)
            blocks += ([chunk.values[n] for n in self._blocks(chunk, columns[chunk.tile])] for chunk in some)
        labels, values = await asyncio.gather(
            self._read(LABELS, [chunk.labels for some in chunks.values() for chunk in some]),
            self._read(VALUES, [span for spans in blocks for span in spans]),
        )
        found, of_chunk, block = [], iter(labels), iter(values)
        split = iter([list(islice(block, len(spans))) for spans in blocks])
        for number, some in chunks.items():
            texts = tuple(bytes(next(of_chunk)) for _ in some)
            found.append(Frames(windows[number], some, texts, [next(split) for _ in some]))
        return found

    async def labels(self, names: Iterable[str], groups: Iterable[int]) -> list[SampleTile]:
        """Return the series of some metrics without samples. Series that hours have in common are returned once."""
        tiles = {tile for number in groups for tile in self.groups[number].rows}
        metrics = self.directory.metrics
        chunks = [(name, each) for name in names for each in metrics.get(name, []) if each.tile in tiles]
        frames = await self._read(LABELS, [each.labels for _, each in chunks])
        return await asyncio.to_thread(self._decoded_labels, chunks, frames)

    def _decoded_labels(self, chunks: list[tuple[str, Chunk]], frames: list[memoryview]) -> list[SampleTile]:
        of_tile: dict[int, dict[str, TileMetric]] = {tile: {} for tile in range(len(self.clocks))}
        known: set[Hashable] = set()
        for (name, chunk), frame in zip(chunks, frames, strict=True):
            data, clocks = bytes(frame), self.clocks[chunk.tile]
            key = name, chunk.rows, data, tuple(clocks.nodes)
            if key not in known:
                known.add(key)
                labels, clock = decode_labels(clocks, chunk, data)
                of_tile[chunk.tile][name] = TileMetric(labels, clock, np.empty((chunk.rows, 0)))
        types, tiles = self.directory.types, self.directory.tiles
        return [SampleTile(self.clocks[n], found, types, tiles[n].dropped) for n, found in of_tile.items()]

    def _blocks(self, chunk: Chunk, columns: Span) -> list[int]:
        return blocks_of(self.width(chunk.tile), chunk, columns)

    async def _read(self, kind: str, spans: list[Span]) -> list[memoryview]:
        """Read some ranges with one request, and do not copy them: a day has tens of megabytes."""
        if not spans:
            return []
        name = f"{self.prefix}-{kind}"
        start, end = min(each[0] for each in spans), max(each[1] for each in spans)
        if not 0 <= start <= end <= self.stored.files.get(name, 0):
            raise MetricsDamaged("stored metrics columns are damaged: the file is too short")
        data = memoryview(await self.stored.read(name, start, end))
        return [data[first - start : last - start] for first, last in spans]

    def decoded(self, frames: Frames) -> TileMetric:
        """Decode a metric of one group."""
        return TileMetric(*self._labels(frames), self._values(frames))

    def decoded_at_steps(self, frames: list[Frames], positions: list[StepPositions]) -> list[TiledMetric]:
        """Decode the latest samples at each step, one group after another: all samples of a day need much memory."""
        tiled: list[TiledMetric] = []
        known: dict[Hashable, tuple[LabelTable, Rows]] = {}
        for each, steps in zip(frames, positions, strict=True):
            group = each.window.group
            key = (
                each.labels,
                tuple((chunk.rows, group.rows[chunk.tile]) for chunk in each.chunks),
                len(group.clocks.nodes),
            )
            if key not in known:  # most hours of a session have the same series
                known[key] = self._labels(each)
            tiled.append((steps.clocks, steps.taken(TileMetric(*known[key], self._values(each)))))
        return connected(tiled)

    def _labels(self, frames: Frames) -> tuple[LabelTable, Rows]:
        found = [
            decode_labels(self.clocks[chunk.tile], chunk, data)
            for chunk, data in zip(frames.chunks, frames.labels, strict=True)
        ]
        rows = frames.window.group.rows
        clocks = [clock + rows[chunk.tile] for chunk, (_, clock) in zip(frames.chunks, found, strict=True)]
        return concatenate_tables([table for table, _ in found]), np.concatenate(clocks)

    def _values(self, frames: Frames) -> Floats:
        columns = dict(frames.window.columns)
        try:
            values = np.empty((sum(chunk.rows for chunk in frames.chunks), frames.window.clocks.times.shape[1]))
        except (MemoryError, ValueError):  # the number of rows is untrusted
            raise MetricsDamaged("stored metrics columns are damaged: a metric has too many rows") from None
        done = 0
        for chunk, blocks in zip(frames.chunks, frames.values, strict=True):
            first, end = columns[chunk.tile]
            rows = values[done : done + chunk.rows]
            decode_values(self.width(chunk.tile), chunk, (first, end), blocks, rows)
            rows[:, end - first :] = np.nan
            done += chunk.rows
        return values


def open_volume(stored: StoredColumns, prefix: str, data: bytes) -> Volume:
    directory = decode_directory(data)
    clocks = directory.clocks()
    for chunk in (each for chunks in directory.metrics.values() for each in chunks):
        if len(chunk.values) > max(1, clocks[chunk.tile].times.shape[1]):
            raise MetricsDamaged("stored metrics columns are damaged: a metric has more blocks than samples")
    return Volume(stored, prefix, directory, clocks, [_group(clocks, tiles) for tiles in _grouped(clocks)])


def _grouped(clocks: list[TileClocks]) -> list[list[int]]:
    """Return tiles of the same hour together, unless they have the same nodes or are too large."""
    groups: list[tuple[int, set[str], list[int]]] = []
    for number, each in enumerate(clocks):
        for hour, nodes, tiles in groups:
            fits = len(nodes) + len(each.nodes) <= _MAX_GROUP_NODES
            if hour == each.hour and fits and nodes.isdisjoint(each.nodes):
                nodes.update(each.nodes)
                tiles.append(number)
                break
        else:
            groups.append((each.hour, set(each.nodes), [number]))
    return [tiles for _, _, tiles in groups]


def _group(clocks: list[TileClocks], tiles: list[int]) -> TileGroup:
    chosen = [clocks[number] for number in tiles]
    rows = dict(zip(tiles, np.cumsum([0, *(len(each.nodes) for each in chosen)]).tolist(), strict=False))
    joined = chosen[0] if len(chosen) == 1 else _joined(chosen)
    return TileGroup(rows, joined, (joined.first_ms, joined.last_ms))


def _joined(clocks: list[TileClocks]) -> TileClocks:
    width = max(each.times.shape[1] for each in clocks)
    times = np.concatenate(
        [np.pad(each.times, ((0, 0), (0, width - each.times.shape[1])), constant_values=NO_TIME) for each in clocks]
    )
    nodes, addresses = [node for each in clocks for node in each.nodes], [a for each in clocks for a in each.addresses]
    return TileClocks(clocks[0].hour, nodes, addresses, times)
