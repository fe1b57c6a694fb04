"""Read stored metrics samples of a session by node and time."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, TypeVar

import msgspec

from rayhistory.errors import ObjectNotFound, ProductNotBuilt, UsageError
from rayhistory.lru import LruCache
from rayhistory.metrics.column_reader import ColumnReader
from rayhistory.metrics.sample_tiles import SampleTile, TilePlace, make_tile, places
from rayhistory.metrics.samples import MAX_SAMPLES_BYTES, MetricsDamaged, Samples, decode, family
from rayhistory.metrics.time_ranges import SessionTimes
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import Store

_MAX_QUERY_BYTES = 64 * 2**20
_MAX_NAMED_BYTES = 256 * 2**20
"""Limit for queries of some metrics. It is higher, because only these stay in memory."""
_MAX_LOADED = 24_000_000
"""Maximum number of samples of one query: 192 MB."""
_MAX_POINTS = 1_000_000
_MAX_CONCURRENT_READS = 16
_MAX_CONCURRENT_TILES = 1
"""A tile of an hour has up to 75 MB. Its objects are read concurrently."""
_SERIES_BYTES = 900
"""Memory of a series without its values."""
_CACHE_BYTES = 128 << 20
_LISTING_TTL_S = 5.0
_CACHED_LISTINGS = 64
_NEWEST_OBJECTS = 4
_END_OF_TIME_MS = 2**62


class MetricQuery(msgspec.Struct, frozen=True):
    """A selection of samples: one node or all nodes, and a time range in ms."""

    node: str | None = None
    start: int = 0
    end: int = _END_OF_TIME_MS


class MetricsObject(msgspec.Struct, frozen=True):
    node: str
    first_ms: int
    key: str
    size: int
    modified: float


def newest_of_nodes(objects: Iterable[MetricsObject]) -> set[MetricsObject]:
    """Return the last object of each node, which its collector may still overwrite."""
    newest: dict[str, MetricsObject] = {}
    for each in sorted(objects, key=lambda each: each.first_ms):
        newest[each.node] = each
    return set(newest.values())


class MetricsGap(msgspec.Struct, frozen=True):
    """Samples of a node that could not be read, between two times in ms."""

    node: str
    from_ms: int
    to_ms: int


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
        """Return the series with this name and these labels. Each step has its last point."""
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
        """The highest number of series that a node could not store."""
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
        self._reading: dict[MetricsObject, asyncio.Future[Samples | None]] = {}
        self._reading_tiles: dict[_TileObjects, asyncio.Future[_LoadedTile]] = {}
        self._listings: LruCache[tuple[str, str, str], list[MetricsObject]] = LruCache(
            _CACHED_LISTINGS, ttl=_LISTING_TTL_S
        )

    async def read(self, ref: SessionRef, query: MetricQuery) -> StoredMetrics:
        between = await self._between(ref, query)
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

    async def tiles(self, ref: SessionRef, query: MetricQuery, metrics: Collection[str] | None = None) -> StoredTiles:
        """Read samples of all or some metrics. Covered objects are read from columns."""
        between = await self._between(ref, query)
        from_columns, covered = await self._column_tiles(ref, query, metrics)
        between = [(each, end) for each, end in between if (each.key, each.size) not in covered]
        if sum(each.size for each, _ in between) > (_MAX_QUERY_BYTES if metrics is None else _MAX_NAMED_BYTES):
            raise UsageError(
                f"query reads {len(between)} files of metrics, which is too much data: restrict it by from or to"
            )
        of_tile: dict[TilePlace, list[MetricsObject]] = {}
        for place, (each, _) in zip(places([(o.node, o.first_ms) for o, _ in between]), between, strict=True):
            of_tile.setdefault(place, []).append(each)
        loaded = await asyncio.gather(*(self._tile(place, some, metrics) for place, some in sorted(of_tile.items())))
        ends = dict(between)
        gaps = [
            MetricsGap(each.node, each.first_ms, min(ends[each], query.end)) for tile in loaded for each in tile.missing
        ]
        tiles = [*from_columns, *(each.tile for each in loaded)]
        if sum(series.values.size for tile in tiles for series in tile.metrics.values()) > _MAX_LOADED:
            raise UsageError("query processing would load too many samples into memory in query execution")
        return StoredTiles(tiles, gaps)

    async def _column_tiles(
        self, ref: SessionRef, query: MetricQuery, metrics: Collection[str] | None
    ) -> tuple[list[SampleTile], Collection[tuple[str, int]]]:
        reader = self._columns
        columns = await reader.open(ref) if reader and query.node is None else None
        if reader is None or columns is None:
            return [], ()
        try:
            return await reader.tiles(columns, (query.start, query.end), metrics), columns.covered
        except (MetricsDamaged, ProductNotBuilt):
            return [], ()

    async def _tile(
        self, place: TilePlace, objects: list[MetricsObject], metrics: Collection[str] | None
    ) -> "_LoadedTile":
        key = place, tuple(objects)
        found = self._tiles.get(key)
        if found is None:
            reading = self._reading_tiles.get(key)
            if reading is None:
                reading = self._reading_tiles[key] = asyncio.ensure_future(self._load_tile(key))
                reading.add_done_callback(lambda done: _finished(self._reading_tiles, key, done))
            found = await asyncio.shield(reading)  # another request may wait for it
        return found if metrics is None else found.only(metrics)

    async def _load_tile(self, key: "_TileObjects") -> "_LoadedTile":
        place, objects = key
        async with self._tile_slots:
            loaded = _LoadedTile(*await self.load_tile(place, objects))
        self._tiles.put(key, loaded)
        return loaded

    async def load_tile(
        self, place: TilePlace, objects: Sequence[MetricsObject]
    ) -> tuple[SampleTile, list[MetricsObject]]:
        """Return a tile, and the objects that could not be read."""
        results = await asyncio.gather(*map(self._decoded, objects))
        samples = [(each.node, result) for each, result in zip(objects, results, strict=True) if result]
        missing = [each for each, result in zip(objects, results, strict=True) if not result]
        return await asyncio.to_thread(make_tile, place, samples), missing

    async def version(self, ref: SessionRef, query: MetricQuery) -> int:
        """Return a number that changes when the stored objects of a query change."""
        return hash(tuple(each for each, _ in await self._between(ref, query)))

    async def _between(self, ref: SessionRef, query: MetricQuery) -> list[tuple[MetricsObject, int]]:
        """Return the objects of a query, each with the start of the next object of its node."""
        objects = [each for each in await self.objects(ref) if query.node in (None, each.node)]
        return [(each, end) for each, end in _with_end(objects) if each.first_ms <= query.end and end >= query.start]

    async def times(self, ref: SessionRef) -> SessionTimes | None:
        """Return the times of the first and last samples; None if there are none."""
        objects = await self.objects(ref)
        newest = sorted(objects, key=lambda each: (each.modified, each.first_ms))[-_NEWEST_OBJECTS:]
        last = [max(each.times) for each in await self._read_all(newest) if each and each.times]
        if not last:
            return None
        return SessionTimes(min(each.first_ms for each in objects), max(last))

    async def _read_all(self, chosen: list[MetricsObject]) -> list[Samples | None]:
        return await asyncio.gather(*map(self._read, chosen))

    async def objects(self, ref: SessionRef) -> list[MetricsObject]:
        """List the objects. A listing is reused for some seconds, because a page requests dozens of panels at once."""
        found = self._listings.get(ref.identity)
        if found is None:
            found = [each async for each in self._list(ref)]
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
        reading = self._reading.get(each)
        if reading is None:
            reading = self._reading[each] = asyncio.ensure_future(self._load(each))
            reading.add_done_callback(lambda done: _finished(self._reading, each, done))
        return await asyncio.shield(reading)  # another request may wait for it

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


_TileObjects = tuple[TilePlace, tuple[MetricsObject, ...]]
T = TypeVar("T")


def _finished(reading: dict[Any, "asyncio.Future[T]"], key: object, done: "asyncio.Future[T]") -> None:
    reading.pop(key, None)
    if not done.cancelled():
        done.exception()  # reported to those who wait, if anybody still does


def _memory_bytes(samples: Samples) -> int:
    return sum(len(series.values) + _SERIES_BYTES for series in samples.series) + 16 * len(samples.times)


def _with_end(objects: Iterable[MetricsObject]) -> Iterator[tuple[MetricsObject, int]]:
    """Yield each object with the start of the next object of its node."""
    for _, group in groupby(sorted(objects, key=lambda each: (each.node, each.first_ms)), lambda each: each.node):
        of_node = list(group)
        yield from ((each, following.first_ms) for each, following in pairwise(of_node))
        yield of_node[-1], _END_OF_TIME_MS
