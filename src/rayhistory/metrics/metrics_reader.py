"""Read stored metrics samples of a session by node and time."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import msgspec

from rayhistory.concurrency import SharedCalls
from rayhistory.errors import ObjectNotFound, ProductNotBuilt, UsageError
from rayhistory.lru import LruCache
from rayhistory.metrics.column_reader import ColumnReader, OpenColumns
from rayhistory.metrics.object_listing import MetricQuery, MetricsGap, MetricsObject, ObjectListing
from rayhistory.metrics.sample_tiles import SampleTile, TileId, make_tile, tile_ids
from rayhistory.metrics.samples import MAX_SAMPLES_BYTES, MetricsDamaged, Samples, decode, family
from rayhistory.metrics.step_samples import StepSamples
from rayhistory.metrics.time_ranges import SessionTimes, session_times
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import Store

_MAX_QUERY_BYTES = 64 * 2**20
_MAX_NAMED_BYTES = 256 * 2**20
"""Maximum bytes of the objects that a query with named metrics reads: only samples of these stay in memory."""
_MAX_LOADED = 24_000_000
"""Maximum number of samples of one query: 192 MB."""
_MAX_POINTS = 1_000_000
_MAX_CONCURRENT_READS = 16
_MAX_CONCURRENT_TILES = 1
"""Maximum number of tiles that are read at once: a tile has up to 75 MB. The objects of one are read concurrently."""
_SERIES_BYTES = 900
"""Approximate memory of a series, without its values."""
_CACHE_BYTES = 128 << 20
_LISTING_TTL_S = 5.0
_CACHED_LISTINGS = 64
_CACHED_TIMES = 64


class StoredMetrics(msgspec.Struct):
    """Samples by node, and the objects that could not be read."""

    samples: list[tuple[str, Samples]]
    gaps: list[MetricsGap]

    def names(self) -> dict[str, Any]:
        """List every metric name with its type and its number of nodes."""
        types: dict[str, str] = {}
        nodes: dict[str, set[str]] = {}
        for node, samples in self.samples:
            for series in samples.series:
                nodes.setdefault(series.name, set()).add(node)
                types[series.name] = samples.types.get(family(series.name, samples.types), "untyped")
        names = [{"name": name, "type": types[name], "nodes": len(on)} for name, on in sorted(nodes.items())]
        return {"metrics": names, **self._completeness()}

    def points(self, name: str, labels: dict[str, str], query: MetricQuery, step_ms: int) -> dict[str, Any]:
        """Return the series with this name and these labels, and of each step only the last point."""
        series: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, tuple[int, float]]] = {}
        kind, total = "untyped", 0
        for node, samples in self.samples:
            for each in samples.series:
                if each.name != name or not labels.items() <= each.labels.items():
                    continue
                kind = samples.types.get(family(name, samples.types), kind)
                points = series.setdefault((node, tuple(sorted(each.labels.items()))), {})
                total -= len(points)
                points.update((at // step_ms, (at, value)) for at, value in each.points(samples.times)
                              if query.start <= at <= query.end)  # fmt: skip
                total += len(points)
                if total > _MAX_POINTS:
                    raise UsageError(
                        f"query returns more than {_MAX_POINTS} points: restrict it by node, from, to or a label, or "
                        "use a larger step"
                    )
        matching = [
            {"node": node, "labels": dict(pairs), "points": [points[step] for step in sorted(points)]}
            for (node, pairs), points in sorted(series.items())
            if points
        ]
        return {"name": name, "type": kind, "series": matching, **self._completeness()}

    @property
    def series_dropped(self) -> int:
        """The number of series that a node could not store, as the maximum over all nodes."""
        return max((each.dropped for _, each in self.samples), default=0)

    def _completeness(self) -> dict[str, int]:
        return {"series_dropped": self.series_dropped, "files_damaged": len(self.gaps)}


class StoredTiles(msgspec.Struct):
    """Samples by metric, and objects that could not be read."""

    tiles: list[SampleTile]
    gaps: list[MetricsGap]

    @property
    def series_dropped(self) -> int:
        return max((tile.dropped for tile in self.tiles), default=0)


class MetricsReader:
    def __init__(
        self, store: Store, layout: Layout, cache_bytes: int = _CACHE_BYTES, columns: ColumnReader | None = None
    ) -> None:
        self._columns = columns
        self._store = store
        self._layout = layout
        self._cache: LruCache[MetricsObject, Samples] = LruCache(cache_bytes // 4, cost=_memory_bytes)
        self._tiles: LruCache[_TileObjects, _LoadedTile] = LruCache(cache_bytes, cost=_LoadedTile.memory_bytes)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self._tile_slots = asyncio.Semaphore(_MAX_CONCURRENT_TILES)
        self._reading: SharedCalls[MetricsObject, Samples | None] = SharedCalls()
        self._reading_tiles: SharedCalls[_TileObjects, _LoadedTile] = SharedCalls()
        self._listings: LruCache[tuple[str, str, str], ObjectListing] = LruCache(_CACHED_LISTINGS, ttl=_LISTING_TTL_S)
        self._listing: SharedCalls[tuple[str, str, str], ObjectListing] = SharedCalls()
        self._times: LruCache[tuple[int, tuple[MetricsObject, ...]], SessionTimes] = LruCache(_CACHED_TIMES)

    async def read(self, ref: SessionRef, query: MetricQuery) -> StoredMetrics:
        between = (await self.listing(ref)).between(query).objects
        chosen = [each for each, _ in between]
        if sum(each.size for each in chosen) > _MAX_QUERY_BYTES:
            raise UsageError(
                f"query reads {len(chosen)} files of metrics with more than {_MAX_QUERY_BYTES} bytes: restrict it "
                "by node, from or to"
            )
        results = await self._read_all(chosen)
        samples = [(each.node, result) for each, result in zip(chosen, results, strict=True) if result]
        gaps = [
            MetricsGap(each.node, each.first_ms, min(end, query.end))
            for (each, end), result in zip(between, results, strict=True)
            if not result
        ]
        return StoredMetrics(samples, gaps)

    async def tiles(
        self,
        ref: SessionRef,
        query: MetricQuery,
        metrics: Collection[str] | None = None,
        steps: StepSamples | None = None,
        *,
        only_labels: bool = False,
    ) -> StoredTiles:
        """Read samples of all or some metrics. Covered objects are read from columns.

        For metrics in `steps`, samples other than the latest one at each step may be left out. With `only_labels`, all
        samples are.
        """
        listing = await self.listing(ref)
        from_columns, columns = await self._column_tiles(ref, query, metrics, steps, only_labels=only_labels)
        between = (
            listing.uncovered(query, columns.stored.build, columns.covered)
            if columns
            else listing.between(query).objects
        )
        if sum(each.size for each, _ in between) > (_MAX_QUERY_BYTES if metrics is None else _MAX_NAMED_BYTES):
            raise UsageError(
                f"query reads {len(between)} files of metrics, which is too much data: restrict it by from or to"
            )
        of_tile: dict[TileId, list[MetricsObject]] = {}
        for tile_id, (each, _) in zip(tile_ids([(o.node, o.first_ms) for o, _ in between]), between, strict=True):
            of_tile.setdefault(tile_id, []).append(each)
        loaded = await asyncio.gather(
            *(self._tile(tile_id, some, metrics) for tile_id, some in sorted(of_tile.items()))
        )
        ends = dict(between)
        gaps = [
            MetricsGap(each.node, each.first_ms, min(ends[each], query.end)) for tile in loaded for each in tile.missing
        ]
        gaps += listing.between(query).pauses
        of_objects = (each.tile.without_samples() if only_labels else each.tile for each in loaded)
        tiles = [*from_columns, *of_objects]
        if sum(series.values.size for tile in tiles for series in tile.metrics.values()) > _MAX_LOADED:
            raise UsageError("query processing would load too many samples into memory in query execution")
        return StoredTiles(tiles, gaps)

    async def _column_tiles(
        self,
        ref: SessionRef,
        query: MetricQuery,
        metrics: Collection[str] | None,
        steps: StepSamples | None,
        *,
        only_labels: bool,
    ) -> tuple[list[SampleTile], OpenColumns | None]:
        reader = self._columns
        columns = await reader.open(ref) if reader and query.node is None else None
        if reader is None or columns is None:
            return [], None
        span = query.start, query.end
        try:
            if only_labels:
                return await reader.labels(columns, span, metrics), columns
            return await reader.tiles(columns, span, metrics, steps), columns
        except (MetricsDamaged, ProductNotBuilt):
            return [], None

    async def _tile(
        self, tile_id: TileId, objects: list[MetricsObject], metrics: Collection[str] | None
    ) -> "_LoadedTile":
        key = tile_id, tuple(objects)
        found = self._tiles.get(key)
        if found is None:
            found = await self._reading_tiles.call(key, lambda: self._load_tile(key))
        return found if metrics is None else found.only(metrics)

    async def _load_tile(self, key: "_TileObjects") -> "_LoadedTile":
        tile_id, objects = key
        async with self._tile_slots:
            loaded = _LoadedTile(*await self.load_tile(tile_id, objects))
        self._tiles.put(key, loaded)
        return loaded

    async def load_tile(
        self, tile_id: TileId, objects: Sequence[MetricsObject]
    ) -> tuple[SampleTile, list[MetricsObject]]:
        """Return a tile, and the objects that could not be read."""
        results = await asyncio.gather(*map(self._decoded, objects))
        samples = [(each.node, result) for each, result in zip(objects, results, strict=True) if result]
        missing = [each for each, result in zip(objects, results, strict=True) if not result]
        return await asyncio.to_thread(make_tile, tile_id, samples), missing

    async def version(self, ref: SessionRef, query: MetricQuery) -> int:
        """Return a number that changes when the stored objects of a query change."""
        return (await self.listing(ref)).between(query).version

    async def times(self, ref: SessionRef) -> SessionTimes | None:
        """Return the times of the first and last samples and their usual interval; None if there are no samples."""
        listing = await self.listing(ref)
        key = listing.first_ms, listing.newest
        found = self._times.get(key)
        if found is None:
            clocks = [each.times for each in await self._read_all(listing.newest) if each]
            found = await asyncio.to_thread(session_times, listing.first_ms, clocks)
            if found:
                self._times.put(key, found)
        return found

    async def _read_all(self, chosen: Sequence[MetricsObject]) -> list[Samples | None]:
        return await asyncio.gather(*map(self._read, chosen))

    async def listing(self, ref: SessionRef) -> ObjectListing:
        """List the objects. A listing is reused for some seconds, because a page requests dozens of panels at once."""
        found = self._listings.get(ref.identity)
        return found or await self._listing.call(ref.identity, lambda: self._new_listing(ref))

    async def _new_listing(self, ref: SessionRef) -> ObjectListing:
        found = ObjectListing([each async for each in self._list(ref)])
        self._listings.put(ref.identity, found)
        return found

    async def _list(self, ref: SessionRef) -> AsyncIterator[MetricsObject]:
        async for info in self._store.list_all(self._layout.metrics_prefix(ref)):
            if parsed := self._layout.parse_metrics_key(ref, info.key):
                yield MetricsObject(*parsed, info.key, info.size, info.modified)

    async def _read(self, each: MetricsObject) -> Samples | None:
        """Read an object; None if it is damaged or removed. Concurrent requests share one read."""
        if cached := self._cache.get(each):
            return cached
        return await self._reading.call(each, lambda: self._load(each))

    async def _load(self, each: MetricsObject) -> Samples | None:
        samples = await self._decoded(each)
        if samples is not None:
            self._cache.put(each, samples)
        return samples

    async def _decoded(self, each: MetricsObject) -> Samples | None:
        async with self._slots:
            try:
                data = await self._store.get_range(each.key, 0, MAX_SAMPLES_BYTES)
                return await asyncio.to_thread(decode, data)
            except (MetricsDamaged, ObjectNotFound):
                return None


class _LoadedTile(msgspec.Struct):
    tile: SampleTile
    missing: list[MetricsObject]
    """Objects that are damaged or have been removed."""

    def memory_bytes(self) -> int:
        return self.tile.memory_bytes()

    def only(self, metrics: Collection[str]) -> "_LoadedTile":
        """Return the tile with some metrics only, to free the memory of the others."""
        tile = self.tile
        chosen = {name: tile.metrics[name] for name in metrics if name in tile.metrics}
        return _LoadedTile(SampleTile(tile.clocks, chosen, tile.types, tile.dropped), self.missing)


_TileObjects = tuple[TileId, tuple[MetricsObject, ...]]


def _memory_bytes(samples: Samples) -> int:
    return sum(len(series.values) + _SERIES_BYTES for series in samples.series) + 16 * len(samples.times)
