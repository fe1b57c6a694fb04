"""Resolve an address to a session: `/s/…` paths and KubeRay's cookies become a `Selection`, and that a SessionView.

/s/{namespace}/{cluster}/{session_…|latest|live}[@{UTC ms or ISO 8601}]/…
/s/{namespace}/~rayjob/{name}/[{session_…|latest|live}/]…        likewise ~rayservice
"""

from collections.abc import Mapping

import msgspec

from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.index.products.session_products import SessionProducts
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.lru import LruCache
from rayhistory.metrics.dashboard_library import DashboardLibrary, DashboardSet
from rayhistory.metrics.metrics_reader import MetricQuery, MetricsReader, StoredMetrics
from rayhistory.metrics.time_ranges import SessionTimes
from rayhistory.names import parse_dns_name
from rayhistory.packs.pack_reader import PackCache
from rayhistory.server.view import SessionView
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import LATEST, LIVE, CatalogEntry, SessionCatalog
from rayhistory.sessions.ref import is_session_name
from rayhistory.storage import Store
from rayhistory.utc import parse_utc_ms

_MAX_CACHED_LOG_SOURCES = 256
_PATH_USAGE = "use /s/{namespace}/{cluster}/{session}/"
OWNER_KINDS = ("rayjob", "rayservice")
COOKIES = ("cluster_name", "cluster_namespace", "session_name", "owner_kind", "owner_name")


class Selection(msgspec.Struct, frozen=True):
    """A session as an address names it, before it is looked up."""

    namespace: str
    name: str
    session: str
    owner_kind: str | None = None
    as_of_ms: int | None = None
    from_cookies: bool = False

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}/{self.session}"


def parse_session_path(path: str) -> tuple[Selection, str | None]:
    """Parse the path after `/s/` into the selection and the rest; the rest is None if the closing slash is missing.

    The path was decoded once. A name that is encoded twice is another name, here as for a proxy in front.
    """
    parts = path.split("/")
    if len(parts) < 2:
        raise UsageError(f"incomplete session path: {_PATH_USAGE}")
    namespace, second, rest = _parse_name(parts[0]), parts[1], parts[2:]
    kind = second[1:].lower() if second.startswith("~") else None
    if kind is not None:
        if kind not in OWNER_KINDS or not rest:
            raise UsageError(f"invalid owner {second!r}: use ~rayjob/{{name}} or ~rayservice/{{name}}")
        name, rest = _parse_name(rest[0]), rest[1:]
    else:
        name = _parse_name(second)
    session, as_of_ms = LATEST, None
    if rest and (kind is None or _is_session(rest[0])):
        session, as_of_ms = _parse_session(rest[0])
        rest = rest[1:]
    elif kind is None:
        raise UsageError(f"incomplete session path: {_PATH_USAGE}")
    return Selection(namespace, name, session, kind, as_of_ms), "/".join(rest) if rest else None


def selection_from_cookies(cookies: Mapping[str, str]) -> Selection | None:
    """Return the session that a KubeRay client selected with `/enter_cluster`; None if it selected none."""
    name, namespace, session = (cookies.get(key, "") for key in COOKIES[:3])
    if not (name and namespace and session):
        return None
    if session not in (LATEST, LIVE) and not is_session_name(session):
        raise UsageError(f"invalid session name: {session!r}")
    return Selection(_parse_name(namespace), _parse_name(name), session, from_cookies=True)


def validated_selection(namespace: str, name: str, session: str, owner_kind: str | None) -> Selection:
    return Selection(_parse_name(namespace), _parse_name(name), _parse_session_name(session), owner_kind)


def _parse_name(text: str) -> str:
    try:
        return parse_dns_name(text)
    except ValueError:
        raise UsageError(f"invalid name of a namespace, cluster or owner: {text!r}") from None


def _is_session(text: str) -> bool:
    name = text.partition("@")[0]
    return name in (LATEST, LIVE) or is_session_name(name)


def _parse_session(text: str) -> tuple[str, int | None]:
    name, at, as_of = text.partition("@")
    return _parse_session_name(name), _parse_as_of(as_of) if at else None


def _parse_session_name(text: str) -> str:
    if text not in (LATEST, LIVE) and not is_session_name(text):
        raise SessionNotFound(f"invalid session name: {text!r}")
    return text


def _parse_as_of(text: str) -> int:
    try:
        return max(0, parse_utc_ms(text))
    except ValueError:
        raise UsageError(f"invalid time {text!r}: use milliseconds since 1970, or ISO 8601 in UTC") from None


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
        self._metrics = MetricsReader(store, layout)
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
        """Open a session, and fold it if necessary; raise SessionNotIndexed if that exceeds the timeout.

        `visitor` is who asks, because points in time are limited per visitor.
        """
        entry = await self.entry(selection)
        closing = await self.catalog.closing(entry)
        index = await self.builder.open(entry.ref, closing, timeout_s, rebuild=rebuild)
        products: SessionProducts | None = SessionProducts(self.builder.products, entry.ref, index.manifest)
        if selection.as_of_ms is not None:
            products = None
            index = await self.builder.open_as_of(entry.ref, closing, selection.as_of_ms, timeout_s, visitor)
        return SessionView(entry.ref, self.catalog.state(entry), index, self._logs_of(entry.ref), products)

    async def metrics(self, selection: Selection, query: MetricQuery) -> StoredMetrics:
        """Read a session's metrics, which need no fold."""
        return await self._metrics.read((await self.entry(selection)).ref, query)

    def search_logs(self, ref: SessionRef) -> CombinedLogs:
        """Return the logs of a session for a search, with caches of their own."""
        return self._cached_logs(ref, self._search_logs, self._search_cache)

    async def metrics_version(self, selection: Selection, query: MetricQuery) -> int:
        """Return a number that changes when the stored samples of a query change."""
        return await self._metrics.version((await self.entry(selection)).ref, query)

    async def metrics_times(self, selection: Selection) -> SessionTimes | None:
        """Return the times of the first and last samples, the last one up to the chosen point in time."""
        times = await self._metrics.times((await self.entry(selection)).ref)
        if times is None or selection.as_of_ms is None:
            return times
        return SessionTimes(times.first_ms, min(max(selection.as_of_ms, times.first_ms), times.last_ms))

    async def dashboards(self, selection: Selection) -> DashboardSet:
        """Read the definitions of a session's charts."""
        return await self._dashboards.read((await self.entry(selection)).ref)

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
