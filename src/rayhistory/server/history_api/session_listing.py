"""The list of sessions on the home page and in the API: filtered, sorted and paged."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import QueryParams

from rayhistory.diagnosis.diagnosis_product import NAME as DIAGNOSIS
from rayhistory.diagnosis.headlines import one_line
from rayhistory.errors import StoreError
from rayhistory.index.manifest import Manifest, SessionCounts, StoredFile, read_latest_manifest
from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.lru import LruCache
from rayhistory.metric_columns.columns_product import NAME as METRICS
from rayhistory.server.frontend import Frontends
from rayhistory.server.history_api.session_filters import parse_session_filters, started_between
from rayhistory.server.http.list_params import parse_page
from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import VANISHED, CatalogEntry, SessionCatalog
from rayhistory.sessions.selection import LIVE
from rayhistory.storage import Store
from rayhistory.web import SessionFilters, SessionRow, SessionRowCounts, UtilizationLine

PAGE_SIZE = 50
_MAX_SEARCHED = 1_000
"""Maximum number of sessions whose indexes one search reads."""
_CONCURRENT_READS = 32
_MAX_CACHED_MANIFESTS, _MAX_CACHED_TEXT = 2_000, 8_192
_LINES_TTL_S = 60.0
_MAX_LINE = 100
_MANIFEST_TTL_S = 30.0
"""Time for which the counts of an ended session are cached. Late events may still change them."""

EntryPredicate = Callable[[CatalogEntry], bool]


class ListingPage(msgspec.Struct):
    """One page of the matching sessions."""

    sessions: list[SessionRow]
    filters: SessionFilters
    total: int
    number: int
    dashboards: list[str]
    """Installed versions of Ray's frontend."""
    unsearched: int = 0
    """Number of older sessions of which only the names were searched, not the jobs."""
    unindexed: int = 0
    """Number of sessions that may match, but whose jobs are unknown because they are not indexed."""

    @property
    def next(self) -> SessionFilters | None:
        return self.filters.with_page(str(self.number + 1)) if self.number * PAGE_SIZE < self.total else None

    @property
    def previous(self) -> SessionFilters | None:
        return self.filters.with_page(str(self.number - 1)) if self.number > 1 else None


class _SearchResult(NamedTuple):
    matching: list[CatalogEntry]
    unsearched: int = 0
    unindexed: int = 0


class _SessionSummary(msgspec.Struct, frozen=True):
    """The data of a session that a search needs."""

    text: str
    indexed: bool
    failures: int = 0
    """The number of failed jobs and tasks."""
    failed: bool = False
    """True if a job failed, or if tasks failed and the outcome of their job is unknown."""


def _summary(texts: list[str], counts: SessionCounts) -> _SessionSummary:
    failed = counts.jobs.get("FAILED", 0)
    unknown = counts.failed_tasks > 0 and not counts.jobs
    failures = failed + counts.failed_tasks
    return _SessionSummary(" ".join(texts).lower(), indexed=True, failures=failures, failed=failed > 0 or unknown)


def _failures(summary: _SessionSummary | None) -> int:
    return summary.failures if summary else 0


class SessionListing:
    def __init__(
        self, catalog: SessionCatalog, store: Store, layout: Layout, products: ProductBuilder | None = None
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._layout = layout
        self._products = products
        self._manifests: LruCache[tuple[str, str, str], tuple[Manifest, float]] = LruCache(_MAX_CACHED_MANIFESTS)
        self._headlines: LruCache[tuple[str, str, str], str] = LruCache(_MAX_CACHED_MANIFESTS, ttl=_LINES_TTL_S)
        self._lines: LruCache[tuple[str, str, str], list[UtilizationLine]] = LruCache(
            _MAX_CACHED_MANIFESTS, ttl=_LINES_TTL_S
        )

    async def page(self, entries: list[CatalogEntry], params: QueryParams, frontends: Frontends) -> ListingPage:
        """Return the requested page of these sessions, which are in the order of the catalog."""
        filters, number = parse_session_filters(params), parse_page(params)
        filters = msgspec.structs.replace(filters, namespaces=sorted({entry.ref.namespace for entry in entries}))
        predicates = self._predicates(filters)
        matching = [entry for entry in entries if all(predicate(entry) for predicate in predicates)]
        found = await self._search(matching, filters)
        matching = _sort_entries(found.matching, filters.sort)
        shown = matching[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        rows = list(await asyncio.gather(*(self.row(entry) for entry in shown)))
        dashboards = [frontend.version for frontend in frontends.installed()]
        return ListingPage(
            _with_dashboards(rows, frontends), filters, len(matching), number, dashboards, found.unsearched,
            found.unindexed,
        )  # fmt: skip

    async def _search(self, entries: list[CatalogEntry], filters: SessionFilters) -> _SearchResult:
        """Apply the filters that need the index of each session, to a limited number of sessions.

        Search words may also occur in a session's jobs, or in the reason why it failed. Return the matching sessions,
        and the number of sessions not searched.
        """
        words = filters.q.lower().split()
        by_name = {entry.ref.identity for entry in entries if _contains_all(_search_text(entry), words)}
        needs_index = filters.failed or (filters.sort or "").lstrip("-") == "failed"
        undecided = [entry for entry in entries if needs_index or entry.ref.identity not in by_name]
        summaries = await self._summaries(undecided[:_MAX_SEARCHED], with_headlines=bool(words))

        def matches(entry: CatalogEntry) -> bool:
            summary = summaries.get(entry.ref.identity)
            found = entry.ref.identity in by_name or (summary is not None and _contains_all(summary.text, words))
            return found and (not filters.failed or self._is_failed(entry, summary))

        matching = [entry for entry in entries if matches(entry)]
        if (filters.sort or "").lstrip("-") == "failed":
            matching.sort(
                key=lambda entry: _failures(summaries.get(entry.ref.identity)), reverse=filters.sort == "failed"
            )
        matching_identities = {entry.ref.identity for entry in matching}
        unindexed = sum(
            not summary.indexed and identity not in matching_identities for identity, summary in summaries.items()
        )
        return _SearchResult(matching, max(0, len(undecided) - _MAX_SEARCHED), unindexed)

    async def _summaries(
        self, entries: list[CatalogEntry], *, with_headlines: bool
    ) -> dict[tuple[str, str, str], "_SessionSummary"]:
        semaphore = asyncio.Semaphore(_CONCURRENT_READS)

        async def summarize(entry: CatalogEntry) -> _SessionSummary:
            async with semaphore:
                start, manifest = await asyncio.gather(self._catalog.start(entry), self._manifest(entry))
                headline = None
                if with_headlines and isinstance(manifest, Manifest):
                    headline = await self._headline(entry, manifest)
            owner = start.owner_name if start else None
            if not isinstance(manifest, Manifest):
                is_live_cluster = entry.ref.session == LIVE  # it has nothing to index
                return _SessionSummary(f"{_search_text(entry)} {owner or ''}".lower(), indexed=is_live_cluster)
            texts = [_search_text(entry), owner or "", headline or "", *manifest.counts.job_texts]
            return _summary(texts, manifest.counts)

        found = await asyncio.gather(*map(summarize, entries))
        return {entry.ref.identity: summary for entry, summary in zip(entries, found, strict=True)}

    def _is_failed(self, entry: CatalogEntry, summary: "_SessionSummary | None") -> bool:
        """Return whether the session counts as failed: its summary says so, or its cluster vanished."""
        return (summary is not None and summary.failed) or self._catalog.state(entry) == VANISHED

    def matching(self, entries: list[CatalogEntry], filters: SessionFilters) -> list[CatalogEntry]:
        """Return the sessions that match by data of the catalog alone, in the requested order."""
        words = filters.q.lower().split()
        predicates = self._predicates(filters)
        matching = [entry for entry in entries if all(predicate(entry) for predicate in predicates)]
        return _sort_entries([entry for entry in matching if _contains_all(_search_text(entry), words)], filters.sort)

    def _predicates(self, filters: SessionFilters) -> list[EntryPredicate]:
        """Return filters that need only the catalog and no read from the store."""
        predicates: list[EntryPredicate] = []
        if filters.namespace:
            predicates.append(lambda entry: entry.ref.namespace == filters.namespace)
        if filters.cluster:
            predicates.append(lambda entry: entry.ref.cluster == filters.cluster)
        if filters.owner:
            kind, _, name = filters.owner.partition("/")
            owner_kind = None if kind == "none" else kind
            predicates.append(lambda entry: entry.ref.owner_kind == owner_kind and name in ("", entry.ref.owner_name))
        start, end = started_between(filters)
        if (start, end) != (None, None):
            predicates.append(lambda entry: (start or 0) <= (entry.started_ms or 0) < (end or float("inf")))
        if filters.state:
            predicates.append(lambda entry: self._catalog.state(entry) == filters.state)
        return predicates

    async def row(self, entry: CatalogEntry) -> SessionRow:
        start, closing, manifest_or_error = await asyncio.gather(
            self._catalog.start(entry), self._catalog.closing(entry), self._manifest(entry)
        )
        manifest = manifest_or_error if isinstance(manifest_or_error, Manifest) else None
        state = self._catalog.state(entry)
        last_ns = (manifest.last_ns or 0) if manifest else 0
        ref = entry.ref
        return SessionRow(
            namespace=ref.namespace,
            cluster=ref.cluster,
            session=ref.session,
            state=state,  # type: ignore[arg-type]
            url=ref.url,
            owner_kind=ref.owner_kind or (start.owner_kind if start else None),
            owner_name=ref.owner_name or (start.owner_name if start else None),
            started_ms=start.started_ms if start else entry.started_ms,
            ended_ms=max(closing.ns, last_ns) // 1_000_000 or None if closing else None,
            ray_version=(start.ray_version if start else None) or (manifest.ray_version if manifest else None),
            size_bytes=manifest.counts.size_bytes if manifest else None,
            index_bytes=manifest.size if manifest else None,
            counts=_counts(manifest) if manifest else None,
            unreadable=isinstance(manifest_or_error, StoreError),
            headline=await self._headline(entry, manifest) if manifest else None,
            utilization=await self._utilization(entry) if manifest else [],
        )

    async def _utilization(self, entry: CatalogEntry) -> list[UtilizationLine]:
        """Return the utilization of a session, from the preview of its metrics product. Cache it for a minute."""
        if self._products is None or METRICS not in self._products.names:
            return []
        known = self._lines.get(entry.ref.identity)
        if known is None:
            try:
                product = await self._products.latest(entry.ref, METRICS)
            except StoreError:
                return []
            known = utilization_lines(product.preview if product else {})
            self._lines.put(entry.ref.identity, known)
        return known

    async def _headline(self, entry: CatalogEntry, manifest: Manifest) -> str | None:
        """Return why a session failed; None if it did not. Successful sessions need no read from the store."""
        vanished = manifest.closing is not None and not manifest.closing.clean
        if self._products is None or not (vanished or {"FAILED", "STOPPED"} & manifest.counts.jobs.keys()):
            return None
        if known := self._headlines.get(entry.ref.identity):
            return known
        try:
            headline = (await self._products.preview(entry.ref, DIAGNOSIS)).get("headline")
        except StoreError:
            return None
        if not isinstance(headline, str):
            return None
        headline = one_line(headline)
        self._headlines.put(entry.ref.identity, headline)
        return headline

    async def _manifest(self, entry: CatalogEntry) -> Manifest | StoreError | None:
        """Return the manifest of the session's index. Cache it for some seconds if it covers the session's end."""
        closing, now = await self._catalog.closing(entry), time.monotonic()
        cached, expires = self._manifests.get(entry.ref.identity) or (None, now)
        if cached and cached.closing == closing and now < expires:
            return cached
        try:
            manifest = await read_latest_manifest(self._store, self._layout, entry.ref)
        except StoreError as error:
            return error
        if manifest and manifest.closing:
            self._manifests.put(entry.ref.identity, (_small(manifest), now + _MANIFEST_TTL_S))
        return manifest


def utilization_lines(preview: dict[str, Any]) -> list[UtilizationLine]:
    """Return the utilization lines that the preview of a product contains. The preview is untrusted."""
    found = []
    for name, shown in (("cpu", "CPU"), ("memory", "Memory"), ("gpu", "GPU")):
        values = preview.get(name)
        if isinstance(values, list) and len(values) > 1:
            numbers = [float(min(max(v, 0), 100)) if isinstance(v, int) else None for v in values[:_MAX_LINE]]
            found.append(UtilizationLine(shown, numbers))
    return found


def _small(manifest: Manifest) -> Manifest:
    """Return a copy without lists of files and with short job texts, to save memory. It keeps the index size."""
    text = " ".join(manifest.counts.job_texts)[:_MAX_CACHED_TEXT]
    counts = msgspec.structs.replace(manifest.counts, job_texts=[text])
    return msgspec.structs.replace(manifest, files={"all": [StoredFile("", 0, manifest.size)]}, parts=[], counts=counts)


def _sort_entries(entries: list[CatalogEntry], sort: str | None) -> list[CatalogEntry]:
    """Sort entries. Equal entries stay in the order of the catalog, which is also the default order."""
    if not sort or sort.lstrip("-") == "failed":
        return entries
    key = {
        "started": lambda entry: entry.started_ms or 0,
        "cluster": lambda entry: entry.ref.cluster,
        "namespace": lambda entry: entry.ref.namespace,
    }[sort.lstrip("-")]
    return sorted(entries, key=key, reverse=sort.startswith("-"))


def _contains_all(text: str, words: list[str]) -> bool:
    return all(word in text for word in words)


def _search_text(entry: CatalogEntry) -> str:
    ref = entry.ref
    return f"{ref.namespace} {ref.cluster} {ref.session} {ref.owner_name or ''}".lower()


def _with_dashboards(rows: list[SessionRow], frontends: Frontends) -> list[SessionRow]:
    chosen = {version: frontends.choose(version) for version in {row.ray_version for row in rows}}
    versions = {version: frontend.version for version, frontend in chosen.items() if frontend}
    return [msgspec.structs.replace(row, dashboard=versions.get(row.ray_version)) for row in rows]


def _counts(manifest: Manifest) -> SessionRowCounts:
    counts = manifest.counts
    return SessionRowCounts(
        jobs=counts.jobs,
        tasks=counts.tasks,
        failed_tasks=counts.failed_tasks,
        actors=counts.actors,
        nodes=counts.nodes,
        gaps=counts.gaps,
    )
