"""Search in the logs of many sessions, one after another, with limits. It can continue at any session."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.search.scanner import Scan
from rayhistory.search.search_query import Cursor, SearchQuery, encode_cursor
from rayhistory.search.unit_search import FoundLine
from rayhistory.server.history_api.api_types import LogHit, SearchEnd, SearchProgress
from rayhistory.server.logs.line_owners import NOBODY, LineOwner, find_owners
from rayhistory.server.resolve import SessionResolver
from rayhistory.server.search_api.session_search import log_hit, position_of
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.sessions.selection import Selection

_OPEN_TIMEOUT_S = 3.0
"""Time that hits wait for the tables of their session. Without tables, task and actor are unknown."""

StartScan = Callable[[SessionRef, SearchQuery, float | None], Awaitable[Scan]]
IsVisible = Callable[[SessionRef], Awaitable[bool]]


class MultiSessionCursor(msgspec.Struct, frozen=True, array_like=True):
    """The session at which a search continues, and the position in it."""

    namespace: str
    cluster: str
    session: str
    inner: Cursor | None = None


class MultiSessionSearch:
    """Searches sessions in the given order, until there are enough hits or the time limit is reached."""

    def __init__(
        self,
        resolver: SessionResolver,
        entries: list[CatalogEntry],
        query: SearchQuery,
        start_scan: StartScan,
        is_visible: IsVisible,
        *,
        cursor: MultiSessionCursor | None = None,
        time_budget_s: float | None = None,
    ) -> None:
        self._resolver = resolver
        self._query = query
        self._start_scan = start_scan
        self._is_visible = is_visible
        self._deadline = time.monotonic() + time_budget_s if time_budget_s is not None else float("inf")
        self._entries = entries if cursor is None else _from(entries, cursor)
        self._inner = cursor.inner if cursor else None
        self._counts_all = cursor is None
        self._next: MultiSessionCursor | None = None
        self._progress = SearchProgress(0, 0, 0)

    async def hits(self) -> AsyncIterator[list[LogHit]]:
        missing, inner = self._query.limit, self._inner
        for number, entry in enumerate(self._entries):
            if number and (missing == 0 or time.monotonic() > self._deadline):
                self._next = MultiSessionCursor(*entry.ref.identity)
                return
            if not await self._is_visible(entry.ref):
                continue  # access was revoked while the search ran
            query = msgspec.structs.replace(self._query, limit=missing, cursor=inner)
            budget = max(0.0, self._deadline - time.monotonic()) if self._deadline < float("inf") else None
            scan, inner = await self._start_scan(entry.ref, query, budget), None
            before = msgspec.structs.replace(self._progress)
            async for lines in scan.lines():
                self._progress.scanned_bytes = before.scanned_bytes + scan.scanned_bytes
                self._progress.total_bytes = before.total_bytes + scan.total_bytes
                self._progress.hits = before.hits + scan.count
                missing -= len(lines)
                yield await self._hits_of(entry.ref, lines)
            if scan.next:
                self._next = MultiSessionCursor(*entry.ref.identity, scan.next)
                return

    def progress(self) -> SearchProgress:
        return self._progress

    def end(self) -> SearchEnd:
        complete = self._next is None
        total = self._progress.hits if complete and self._counts_all else None
        cursor = encode_cursor(self._next) if self._next else None
        return SearchEnd(cursor, complete, self._progress.scanned_bytes, total)

    async def _hits_of(self, ref: SessionRef, lines: list[FoundLine]) -> list[LogHit]:
        owners = await self._owners(ref, lines) if lines else {}
        hits = [log_hit(ref.url, line, owners.get(position_of(line), NOBODY)) for line in lines]
        for hit in hits:
            hit.namespace, hit.cluster, hit.session = ref.identity
        return hits

    async def _owners(self, ref: SessionRef, lines: list[FoundLine]) -> dict[tuple[str, str, int], LineOwner]:
        selection = Selection(ref.namespace, ref.cluster, ref.session)
        try:
            view = await self._resolver.view(selection, _OPEN_TIMEOUT_S)
            return await find_owners(view, map(position_of, lines))
        except RayHistoryError:
            return {}  # a session that is not indexed yet, or cannot be, is searched all the same


def _from(entries: list[CatalogEntry], cursor: MultiSessionCursor) -> list[CatalogEntry]:
    identity = (cursor.namespace, cursor.cluster, cursor.session)
    for number, entry in enumerate(entries):
        if entry.ref.identity == identity:
            return entries[number:]
    raise UsageError("the session at which this search would continue was removed: search again without the cursor")
