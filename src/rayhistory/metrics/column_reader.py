"""Read samples from the columns of a session: only the ranges for the metrics and times of a query."""

import asyncio
from collections.abc import Collection
from typing import Protocol

import msgspec

from rayhistory.errors import RayHistoryError
from rayhistory.lru import LruCache
from rayhistory.metrics.column_file import (
    DIRECTORY,
    LABELS,
    VALUES,
    Chunk,
    ColumnDirectory,
    Span,
    decode_directory,
    decode_metric,
    volumes,
)
from rayhistory.metrics.sample_tiles import SampleTile, TileClocks, TileMetric
from rayhistory.metrics.samples import MetricsDamaged
from rayhistory.sessions import SessionRef

_CACHE_BYTES = 96 << 20
_CACHED_VOLUMES = 16
_MAX_CONCURRENT_READS = 16
_LABEL_BYTES = 12
_NO_COLUMNS_S = 60.0
"""Columns that could not be read are not tried again sooner."""


class StoredColumns(Protocol):
    """The files of one build of a session's columns."""

    @property
    def build(self) -> str: ...

    @property
    def files(self) -> dict[str, int]:
        """File names and sizes."""

    async def read(self, name: str, start: int, end: int) -> bytes: ...


class ColumnStore(Protocol):
    async def open(self, ref: SessionRef) -> StoredColumns | None:
        """Return the columns of a session; None if they are not built."""


class _Volume(msgspec.Struct):
    prefix: str
    directory: ColumnDirectory
    clocks: list[TileClocks]


class OpenColumns(msgspec.Struct):
    """The columns of a session: the objects that they cover, and their locations."""

    stored: StoredColumns
    volumes: list[_Volume]
    covered: frozenset[tuple[str, int]]
    """Keys and sizes of the covered objects."""


class ColumnReader:
    def __init__(self, store: ColumnStore, cache_bytes: int = _CACHE_BYTES) -> None:
        self._store = store
        self._open: LruCache[tuple[tuple[str, str, str], str], OpenColumns] = LruCache(_CACHED_VOLUMES)
        self._damaged: LruCache[str, bool] = LruCache(_CACHED_VOLUMES, ttl=_NO_COLUMNS_S)
        self._metrics: LruCache[tuple[str, str, str, int], TileMetric] = LruCache(cache_bytes, cost=_memory_bytes)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self._opening = asyncio.Lock()

    async def open(self, ref: SessionRef) -> OpenColumns | None:
        """Return the columns of a session; None if there are none or they cannot be read."""
        stored = await self._store.open(ref)
        if stored is None or self._damaged.get(stored.build):
            return None
        async with self._opening:
            found = self._open.get((ref.identity, stored.build))
            if found is None:
                try:
                    found = await self._opened(stored)
                except (MetricsDamaged, RayHistoryError):
                    self._damaged.put(stored.build, True)
                    return None
                self._open.put((ref.identity, stored.build), found)
        return found

    async def _opened(self, stored: StoredColumns) -> OpenColumns:
        opened = []
        for prefix in volumes(stored.files):
            name = f"{prefix}-{DIRECTORY}"
            data = await stored.read(name, 0, stored.files[name])
            directory = await asyncio.to_thread(decode_directory, data)
            opened.append(_Volume(prefix, directory, await asyncio.to_thread(directory.clocks)))
        covered = frozenset((key, size) for volume in opened for key, size in volume.directory.objects)
        return OpenColumns(stored, opened, covered)

    async def tiles(self, columns: OpenColumns, span: Span, metrics: Collection[str] | None) -> list[SampleTile]:
        """Read the tiles between two times. Raise MetricsDamaged on failure."""
        found = await asyncio.gather(
            *(self._of_volume(columns.stored, each, span, metrics) for each in columns.volumes)
        )
        return [tile for tiles in found for tile in tiles]

    async def _of_volume(
        self, stored: StoredColumns, volume: _Volume, span: Span, metrics: Collection[str] | None
    ) -> list[SampleTile]:
        start_ms, end_ms = span
        directory = volume.directory
        chosen = {
            number
            for number, clocks in enumerate(volume.clocks)
            if clocks.first_ms <= end_ms and clocks.last_ms >= start_ms
        }
        names = directory.metrics.keys() if metrics is None else [name for name in metrics if name in directory.metrics]
        wanted = {name: [chunk for chunk in directory.metrics[name] if chunk.tile in chosen] for name in names}
        series = dict(
            zip(
                wanted,
                await asyncio.gather(*(self._metric(stored, volume, *each) for each in wanted.items())),
                strict=True,
            )
        )
        return [
            SampleTile(
                volume.clocks[number],
                {name: of_metric[number] for name, of_metric in series.items() if number in of_metric},
                directory.types,
                directory.tiles[number].dropped,
            )
            for number in sorted(chosen)
        ]

    async def _metric(
        self, stored: StoredColumns, volume: _Volume, name: str, chunks: list[Chunk]
    ) -> dict[int, TileMetric]:
        """Read one metric of several tiles: one request for labels and one for values, whose frames are adjacent."""
        key = stored.build, volume.prefix, name
        found = {chunk.tile: metric for chunk in chunks if (metric := self._metrics.get((*key, chunk.tile)))}
        missing = [chunk for chunk in chunks if chunk.tile not in found]
        if missing:
            async with self._slots:
                labels, values = await asyncio.gather(
                    _read(stored, f"{volume.prefix}-{LABELS}", [chunk.labels for chunk in missing]),
                    _read(stored, f"{volume.prefix}-{VALUES}", [chunk.values for chunk in missing]),
                )
                decoded = await asyncio.to_thread(_decoded, volume.clocks, missing, labels, values)
            for chunk, metric in zip(missing, decoded, strict=True):
                found[chunk.tile] = metric
                self._metrics.put((*key, chunk.tile), metric)
        return found


async def _read(stored: StoredColumns, name: str, spans: list[Span]) -> list[bytes]:
    start, end = min(each[0] for each in spans), max(each[1] for each in spans)
    if not 0 <= start <= end <= stored.files.get(name, 0):
        raise MetricsDamaged("stored metrics columns are damaged: the file is too short")
    data = await stored.read(name, start, end)
    return [data[first - start : last - start] for first, last in spans]


def _decoded(
    clocks: list[TileClocks], chunks: list[Chunk], labels: list[bytes], values: list[bytes]
) -> list[TileMetric]:
    return [
        decode_metric(clocks[chunk.tile], chunk, *frames) for chunk, *frames in zip(chunks, labels, values, strict=True)
    ]


def _memory_bytes(metric: TileMetric) -> int:
    return int(metric.values.nbytes) + len(metric.labels) * _LABEL_BYTES * (1 + len(metric.labels.columns))
