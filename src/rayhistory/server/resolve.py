"""Resolve a `Selection` to a session and its `SessionView`."""

from collections.abc import Collection

from rayhistory.errors import TimeBeforeStart
from rayhistory.index.manifest import Manifest
from rayhistory.index.products.session_products import SessionProducts
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.lru import LruCache
from rayhistory.metrics.column_reader import ColumnReader
from rayhistory.metrics.dashboard_library import DashboardLibrary, DashboardSet
from rayhistory.metrics.metrics_reader import MetricsReader, StoredMetrics, StoredTiles
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.metrics.step_samples import StepSamples
from rayhistory.metrics.time_ranges import SessionTimes
from rayhistory.packs.pack_reader import PackCache
from rayhistory.server.metrics_api.session_columns import ProductColumnStore
from rayhistory.server.view import SessionView
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.sessions.selection import Selection
from rayhistory.storage import Store
from rayhistory.web.format import format_iso

_MAX_CACHED_LOG_SOURCES = 256
_MAX_START_ERROR_MS = 24 * 3600 * 1000
"""Maximum error of the start of a session without an index: it may come from a name in an unknown time zone."""


class SessionResolver:
    def __init__(self, catalog: SessionCatalog, builder: IndexBuilder, store: Store, layout: Layout) -> None:
        self.catalog = catalog
        self.builder = builder
        self._store = store
        self._layout = layout
        self._logs: LruCache[tuple[str, str, str], CombinedLogs] = LruCache(_MAX_CACHED_LOG_SOURCES)
        self._pack_cache = PackCache()
        self._search_cache = PackCache()  # a search reads everything, and must not evict what pages need
        self._search_logs: LruCache[tuple[str, str, str], CombinedLogs] = LruCache(_MAX_CACHED_LOG_SOURCES)
        columns = ColumnReader(ProductColumnStore(builder.products))
        self._metrics = MetricsReader(store, layout, columns=columns)
        self._dashboards = DashboardLibrary(store, layout)

    async def entry(self, selection: Selection) -> CatalogEntry:
        if selection.owner_kind:
            return await self.catalog.find_owned(
                selection.namespace, selection.owner_kind, selection.name, selection.session
            )
        return await self.catalog.find(selection.namespace, selection.name, selection.session)

    async def view(
        self, selection: Selection, timeout_s: float | None = None, *, rebuild: bool = False, visitor: str = ""
    ) -> SessionView:
        """Open a session, and fold it if necessary. Raise SessionNotIndexed after the timeout.

        Raise TimeBeforeStart for a point in time before its start.

        `visitor` sent the request. Each visitor may open only a few points in time at once.
        """
        entry = await self.entry(selection)
        closing = await self.catalog.closing(entry)
        await self._check_time(entry, selection.as_of_ms, None)
        index = await self.builder.open(entry.ref, closing, timeout_s, rebuild=rebuild)
        await self._check_time(entry, selection.as_of_ms, index.manifest)
        products: SessionProducts | None = SessionProducts(self.builder.products, entry.ref, index.manifest)
        if selection.as_of_ms is not None:
            products = None
            index = await self.builder.open_as_of(entry.ref, closing, selection.as_of_ms, timeout_s, visitor)
        return SessionView(entry.ref, self.catalog.state(entry), index, self._logs_of(entry.ref), products)

    async def metrics(self, selection: Selection, query: MetricQuery) -> StoredMetrics:
        """Read a session's metrics. This does not need an index."""
        return await self._metrics.read((await self._entry_at(selection)).ref, query)

    async def metric_tiles(
        self,
        selection: Selection,
        query: MetricQuery,
        metrics: Collection[str] | None = None,
        steps: StepSamples | None = None,
    ) -> StoredTiles:
        """Read the samples of all or some metrics, for charts."""
        return await self._metrics.tiles((await self._entry_at(selection)).ref, query, metrics, steps)

    async def metric_labels(
        self, selection: Selection, query: MetricQuery, metrics: Collection[str] | None = None
    ) -> StoredTiles:
        """Read the labels of the series of all or some metrics, without samples."""
        return await self._metrics.tiles((await self._entry_at(selection)).ref, query, metrics, only_labels=True)

    def search_logs(self, ref: SessionRef) -> CombinedLogs:
        """Return the logs of a session for a search. Searches have their own caches, apart from other log requests."""
        return self._cached_logs(ref, self._search_logs, self._search_cache)

    async def metrics_version(self, selection: Selection, query: MetricQuery) -> int:
        """Return a number that changes when the stored samples of a query change."""
        return await self._metrics.version((await self._entry_at(selection)).ref, query)

    async def metrics_times(self, selection: Selection) -> SessionTimes | None:
        """Return the times of the first and last samples, up to the chosen point in time."""
        times = await self._metrics.times((await self._entry_at(selection)).ref)
        if times is None or selection.as_of_ms is None:
            return times
        last_ms = min(max(selection.as_of_ms, times.first_ms), times.last_ms)
        return SessionTimes(times.first_ms, last_ms, times.interval_ms, times.fine_until_ms)

    async def dashboards(self, selection: Selection) -> DashboardSet:
        """Read the definitions of a session's charts."""
        return await self._dashboards.read((await self._entry_at(selection)).ref)

    async def _entry_at(self, selection: Selection) -> CatalogEntry:
        """Return the session as `entry` does. Raise TimeBeforeStart for a point in time before its start.

        The start is only checked as far as it is known without a fold.
        """
        entry = await self.entry(selection)
        if selection.as_of_ms is not None:
            record = await self.catalog.start(entry)
            if record is None or selection.as_of_ms < record.started_ms:
                tables = await self.builder.existing(entry.ref, await self.catalog.closing(entry))
                await self._check_time(entry, selection.as_of_ms, tables)
        return entry

    async def _check_time(self, entry: CatalogEntry, as_of_ms: int | None, tables: Manifest | None) -> None:
        """Raise TimeBeforeStart for a time before the session's start record and its first event."""
        if as_of_ms is None or as_of_ms >= await self._start_ms(entry, tables) - (0 if tables else _MAX_START_ERROR_MS):
            return
        closing = await self.catalog.closing(entry)
        tables = tables or await self.builder.existing(entry.ref, closing)
        started_ms = await self._start_ms(entry, tables)
        end = "is still running"
        if closing:
            ended_ms = max(closing.ns, (tables and tables.last_ns) or 0) // 1_000_000
            end = f"ended at {format_iso(ended_ms, 'milliseconds')}" if ended_ms else "has ended"
        asked, start = (format_iso(each, "milliseconds") for each in (as_of_ms, started_ms))
        message = f"no data as of {asked}: the session started at {start} and {end}"
        raise TimeBeforeStart(message, f"{entry.ref.url[:-1]}@{started_ms}/")

    async def _start_ms(self, entry: CatalogEntry, tables: Manifest | None) -> int:
        """Return the time of the start record or of the first event, whichever is earlier; 0 if neither is known.

        Without tables, return the time of the start record, else that in the session's name.
        """
        record = await self.catalog.start(entry)
        known = [record.started_ms] if record else []
        if tables is None:
            return known[0] if known else entry.started_ms or 0
        return min([*known, *([] if tables.first_ns is None else [tables.first_ns // 1_000_000])], default=0)

    def _logs_of(self, ref: SessionRef) -> CombinedLogs:
        return self._cached_logs(ref, self._logs, self._pack_cache)

    def _cached_logs(
        self, ref: SessionRef, sources: "LruCache[tuple[str, str, str], CombinedLogs]", cache: PackCache
    ) -> CombinedLogs:
        logs = sources.get(ref.identity)
        if logs is None:
            packs = PackLogs(self._store, self._layout, ref, cache)
            logs = CombinedLogs(*object_logs(self._store, self._layout, ref), packs)
            sources.put(ref.identity, logs)
        return logs
