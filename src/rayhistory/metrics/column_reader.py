"""Read samples from the columns of a session: only the ranges for the metrics and times of a query.

A chart of a long time range needs only the latest sample of a metric at each step. All other samples are dropped.
"""

import asyncio
from collections.abc import Collection, Hashable
from typing import Any, Protocol

import msgspec

from rayhistory.concurrency import SharedCalls
from rayhistory.errors import RayHistoryError
from rayhistory.lru import LruCache
from rayhistory.metrics.column_file import DIRECTORY, Chunk, Span, volumes
from rayhistory.metrics.column_volume import StoredColumns, Volume, Window, open_volume
from rayhistory.metrics.sample_tiles import SampleTile, TileMetric
from rayhistory.metrics.samples import MetricsDamaged
from rayhistory.metrics.step_samples import StepPositions, StepSamples, step_positions
from rayhistory.sessions import SessionRef

_CACHE_BYTES = 96 << 20
_CACHED_VOLUMES = 16
_MAX_CONCURRENT_READS = 16
_LABEL_BYTES = 12
_NO_COLUMNS_S = 60.0
"""Seconds before columns that could not be read are tried again."""


class ColumnStore(Protocol):
    async def open(self, ref: SessionRef) -> StoredColumns | None:
        """Return the columns of a session; None if they are not built."""


class OpenColumns(msgspec.Struct):
    """The columns of a session: the objects that they cover, and their locations."""

    stored: StoredColumns
    volumes: list[Volume]
    covered: frozenset[tuple[str, int]]
    """Keys and sizes of the stored objects that the columns cover."""


class ReadPlan(msgspec.Struct):
    """The part of a volume that a query reads: windows of times, and the samples that are the latest at a step."""

    windows: dict[int, Window]
    """By group."""
    positions: dict[int, StepPositions]
    """By group. Groups with few samples for each step are left out."""
    key: Hashable

    def memory_bytes(self) -> int:
        own = (each.clocks.times for each in self.windows.values() if each.clocks is not each.group.clocks)
        at_steps = ((each.positions, each.clocks.times) for each in self.positions.values())
        return 2_000 + sum(each.nbytes for each in own) + sum(one.nbytes + other.nbytes for one, other in at_steps)


class ColumnReader:
    def __init__(self, store: ColumnStore, cache_bytes: int = _CACHE_BYTES) -> None:
        self._store = store
        self._open: LruCache[tuple[tuple[str, str, str], str], OpenColumns] = LruCache(_CACHED_VOLUMES)
        self._damaged: LruCache[str, bool] = LruCache(_CACHED_VOLUMES, ttl=_NO_COLUMNS_S)
        self._metrics: LruCache[Hashable, TileMetric] = LruCache(cache_bytes, cost=_memory_bytes)
        self._at_steps: LruCache[Hashable, list[SampleTile]] = LruCache(
            cache_bytes // 4, cost=lambda tiles: sum(tile.memory_bytes() for tile in tiles)
        )
        self._plans: LruCache[Hashable, ReadPlan] = LruCache(cache_bytes // 4, cost=ReadPlan.memory_bytes)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self._opening = asyncio.Lock()
        self._shared: SharedCalls[Hashable, Any] = SharedCalls()

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
            opened.append(await asyncio.to_thread(open_volume, stored, prefix, data))
        covered = frozenset((key, size) for volume in opened for key, size in volume.directory.objects)
        return OpenColumns(stored, opened, covered)

    async def tiles(
        self, columns: OpenColumns, span: Span, metrics: Collection[str] | None, steps: StepSamples | None = None
    ) -> list[SampleTile]:
        """Read the tiles between two times. Raise MetricsDamaged on failure.

        For metrics in `steps`, only the latest sample at each step is returned.
        """
        found = await asyncio.gather(*(self._of_volume(each, span, metrics, steps) for each in columns.volumes))
        return [tile for tiles in found for tile in tiles]

    async def labels(self, columns: OpenColumns, span: Span, metrics: Collection[str] | None) -> list[SampleTile]:
        """Read the series between two times without their samples. Raise MetricsDamaged on failure."""
        found = await asyncio.gather(
            *(
                each.labels(each.directory.metrics if metrics is None else metrics, each.between(span))
                for each in columns.volumes
            )
        )
        return [tile for tiles in found for tile in tiles]

    async def _of_volume(
        self, volume: Volume, span: Span, metrics: Collection[str] | None, steps: StepSamples | None
    ) -> list[SampleTile]:
        plan = await self._plan(volume, span, steps)
        names = volume.directory.metrics if metrics is None else metrics
        at_steps = [name for name in names if steps and name in steps.metrics]
        others = [number for number in plan.windows if number not in plan.positions]
        chunks = {name: volume.chunks(name, others if name in at_steps else plan.windows) for name in names}
        parts = await asyncio.gather(
            self._whole(volume, plan, chunks), *(self._metric_at_steps(volume, name, plan) for name in at_steps)
        )
        return [tile for part in parts for tile in part]

    async def _whole(
        self, volume: Volume, plan: ReadPlan, chunks: dict[str, dict[int, list[Chunk]]]
    ) -> list[SampleTile]:
        """Read all samples of some metrics, one tile for each group."""
        found = await asyncio.gather(*(self._metric(volume, name, each, plan) for name, each in chunks.items()))
        of_group: dict[int, dict[str, TileMetric]] = {number: {} for number in plan.windows}
        for name, each in zip(chunks, found, strict=True):
            for number, metric in each.items():
                of_group[number][name] = metric
        return [volume.tile([number], plan.windows[number].clocks, each) for number, each in of_group.items()]

    async def _metric(
        self, volume: Volume, name: str, chunks: dict[int, list[Chunk]], plan: ReadPlan
    ) -> dict[int, TileMetric]:
        keys = {number: volume.key(name, number, plan.windows[number].columns) for number in chunks}
        found = {number: metric for number, key in keys.items() if (metric := self._metrics.get(key))}
        missing = {number: some for number, some in chunks.items() if number not in found}
        if missing:
            decoded: list[TileMetric] = await self._shared.call(
                tuple(keys[number] for number in missing), lambda: self._decoded(volume, missing, plan)
            )
            for number, metric in zip(missing, decoded, strict=True):
                found[number] = metric
                self._metrics.put(keys[number], metric)
        return found

    async def _decoded(self, volume: Volume, chunks: dict[int, list[Chunk]], plan: ReadPlan) -> list[TileMetric]:
        async with self._slots:
            frames = await volume.frames(chunks, plan.windows)
            return await asyncio.to_thread(lambda: [volume.decoded(each) for each in frames])

    async def _plan(self, volume: Volume, span: Span, steps: StepSamples | None) -> ReadPlan:
        key = volume.key(span, steps.times.tobytes() if steps else b"")
        found: ReadPlan | None = self._plans.get(key)
        if found is None:
            found = await self._shared.call(key, lambda: asyncio.to_thread(_read_plan, volume, span, steps, key))
            self._plans.put(key, found)
        return found

    async def _metric_at_steps(self, volume: Volume, name: str, plan: ReadPlan) -> list[SampleTile]:
        chunks = volume.chunks(name, plan.positions)
        if not chunks:
            return []
        key = plan.key, name
        found = self._at_steps.get(key)
        if found is None:
            found = await self._shared.call(key, lambda: self._decoded_at_steps(volume, name, chunks, plan))
            self._at_steps.put(key, found)
        return found

    async def _decoded_at_steps(
        self, volume: Volume, name: str, chunks: dict[int, list[Chunk]], plan: ReadPlan
    ) -> list[SampleTile]:
        async with self._slots:
            frames = await volume.frames(chunks, plan.windows)
            positions = [plan.positions[number] for number in chunks]
            tiled = await asyncio.to_thread(volume.decoded_at_steps, frames, positions)
        return [volume.tile(chunks, clocks, {name: metric}) for clocks, metric in tiled]


def _read_plan(volume: Volume, span: Span, steps: StepSamples | None, key: Hashable) -> ReadPlan:
    windows = {number: volume.window(number, span) for number in volume.between(span)}
    found = {number: step_positions(each.clocks, steps.times) for number, each in windows.items()} if steps else {}
    return ReadPlan(windows, {number: each for number, each in found.items() if each}, key)


def _memory_bytes(metric: TileMetric) -> int:
    return int(metric.values.nbytes) + len(metric.labels) * _LABEL_BYTES * (1 + len(metric.labels.columns))
