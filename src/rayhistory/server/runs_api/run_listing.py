"""The runs that a visitor may see. They are grouped once and then served from memory."""

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.requests import Request

from rayhistory.diagnosis.earlier_runs import EarlierRuns
from rayhistory.errors import NotFound, RayHistoryError
from rayhistory.lru import LruCache
from rayhistory.runs.group_details import RunGroupDetails, group_details, sessions_of_details
from rayhistory.runs.outcomes import earlier_runs
from rayhistory.runs.prices import prices_of
from rayhistory.runs.run_groups import GroupedRuns, RunGroup, group_runs, sort_groups, summarize_group
from rayhistory.runs.run_table import RunRows, RunTable
from rayhistory.runs.session_summary import SessionSummary
from rayhistory.server.http.admission import admission_of
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.runs_api.run_query import PAGE_SIZE, RunFilters
from rayhistory.sessions import Layout
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_CACHED_VIEWS = 8
_SINCE_STEP_MS = 60_000
_FIRST_LISTING_S = 0.5

Identity = tuple[str, str, str]


class VisibleRuns(NamedTuple):
    """The summaries that a visitor may see."""

    summaries: list[SessionSummary]
    rows: RunRows
    unsummarized: int | None
    """Sessions that have no summary yet; None while the sessions of the store are listed for the first time."""

    @property
    def namespaces(self) -> list[str]:
        return sorted({each.namespace for each in self.summaries})


class GroupPage(NamedTuple):
    groups: list[RunGroup]
    """The groups of this page."""
    all_groups: list[RunGroup]
    """The groups of all pages."""
    filters: RunFilters
    visible: VisibleRuns

    @property
    def total(self) -> int:
        return len(self.all_groups)

    @property
    def next(self) -> RunFilters | None:
        page = self.filters.page
        return self.filters.with_page(page + 1) if page * PAGE_SIZE < self.total else None

    @property
    def previous(self) -> RunFilters | None:
        return self.filters.with_page(self.filters.page - 1) if self.filters.page > 1 else None


class _Groups(NamedTuple):
    grouped: dict[str, GroupedRuns]
    """The groups by key."""
    summaries: list[RunGroup]


class RunListing:
    def __init__(self, store: Store, layout: Layout, settings: Settings) -> None:
        """`store` has the indexes and the run table. It is the local overlay if the configured store is read-only."""
        self.table = RunTable(store, layout, Path(settings.cache_dir))
        self.prices = prices_of(settings.price)
        self._run_key = settings.run_key
        self.keeps_removed = settings.keep_runs
        self._views: LruCache[tuple[int, int, int], _Groups] = LruCache(_CACHED_VIEWS)
        self._lock = asyncio.Lock()

    async def visible(self, request: Request) -> VisibleRuns:
        """Return the summaries of the visitor's namespaces, without those of removed sessions.

        A new server needs seconds to list a large store. It does not wait for that, because rows of removed sessions
        disappear from the table soon after their removal.
        """
        catalog = resolver_of(request).catalog
        rows, entries = await asyncio.gather(self.table.load(), catalog.entries_within(_FIRST_LISTING_S))
        existing = rows.summaries.keys() if entries is None else {entry.ref.identity for entry in entries}
        candidates = {each[0] for each in rows.summaries} | {each[0] for each in existing}
        namespaces = await admission_of(request).visible_namespaces(request, candidates)
        summaries = [
            summary
            for identity, summary in rows.summaries.items()
            if identity[0] in namespaces and (self.keeps_removed or identity in existing)
        ]
        if entries is None:
            return VisibleRuns(summaries, rows, None)
        visible = sum(identity[0] in namespaces for identity in existing)
        known = sum(each.identity in existing for each in summaries)
        return VisibleRuns(summaries, rows, max(0, visible - known))

    async def page(self, request: Request, filters: RunFilters) -> GroupPage:
        visible = await self.visible(request)
        groups = await self._groups(visible, filters.since_ms)
        matching = sort_groups(
            [group for group in groups.summaries if filters.matches(group)], filters.sort or "-started"
        )
        first = (filters.page - 1) * PAGE_SIZE
        filters = msgspec.structs.replace(filters, namespaces=visible.namespaces)
        return GroupPage(matching[first : first + PAGE_SIZE], matching, filters, visible)

    async def details(self, request: Request, key: str, since_ms: int | None = None) -> RunGroupDetails:
        """Return one group. Raise NotFound if the visitor may see none with this key."""
        groups = await self._groups(await self.visible(request), since_ms)
        if key not in groups.grouped:
            raise NotFound("no group of runs has this key: choose a group from the list of runs")
        group = groups.grouped[key]
        details = await self.table.details(sessions_of_details(group))
        return group_details(group, details, self.prices)

    async def earlier_runs(self, request: Request, identity: Identity) -> EarlierRuns | None:
        """Return earlier runs of the jobs of a session, as far as the visitor may see them.

        Return None if the run table cannot be read.
        """
        try:
            visible = await self.visible(request)
            groups = await self.groups(visible)
        except RayHistoryError as error:
            log.warning(
                "cannot read the run table, skipping comparison with earlier runs", extra={"reason": str(error)}
            )
            return None
        earlier = await asyncio.to_thread(earlier_runs, groups.values(), identity)
        return msgspec.structs.replace(earlier, unsummarized=visible.unsummarized or 0)

    async def groups(self, visible: VisibleRuns) -> dict[str, GroupedRuns]:
        return (await self._groups(visible, None)).grouped

    async def _groups(self, visible: VisibleRuns, since_ms: int | None) -> _Groups:
        """Group runs, once for all visitors who may see the same namespaces."""
        start = 0
        if since_ms is not None:
            start = (int(time.time() * 1000) - since_ms) // _SINCE_STEP_MS * _SINCE_STEP_MS
        key = visible.rows.version, hash(frozenset(each.identity for each in visible.summaries)), start
        async with self._lock:
            groups = self._views.get(key)
            if groups is None:
                groups = await asyncio.to_thread(self._group, visible.summaries, start)
                self._views.put(key, groups)
        return groups

    def _group(self, summaries: Iterable[SessionSummary], start: int) -> _Groups:
        recent = [each for each in summaries if (each.started_ms or 0) >= start]
        grouped = group_runs(recent, self._run_key)
        return _Groups(
            {group.identity.key: group for group in grouped}, [summarize_group(group, self.prices) for group in grouped]
        )


def run_listing_of(request: Request) -> RunListing:
    listing: RunListing = request.app.state.runs
    return listing
