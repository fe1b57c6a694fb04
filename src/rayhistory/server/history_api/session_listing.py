"""The rows of the home page: sessions as the catalogue lists them, with what is known of those on this page only."""

import asyncio
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
from starlette.datastructures import QueryParams

from rayhistory import web
from rayhistory.errors import StoreError, UsageError
from rayhistory.index.manifest import Manifest, read_latest
from rayhistory.layout import Layout
from rayhistory.server.catalogue import RUNNING, Catalogue, Entry
from rayhistory.server.frontend import Frontends
from rayhistory.storage import Store
from rayhistory.web import HomeFilters, SessionCounts, SessionRow

PAGE_SIZE = 50
_HOURS = {"h": 1, "d": 24}
_LARGEST_PAGE = 10**9
_FRESH = 30.0
"""How long counts of a session that is over are shown without another look: what came late may still be added."""

Test = Callable[[Entry], bool]


class HomePage(msgspec.Struct):
    """One page of the sessions that match, and where in the list it is."""

    sessions: list[SessionRow]
    filters: HomeFilters
    total: int
    number: int
    dashboards: list[str]
    """The versions of Ray's frontend that there are."""

    @property
    def next(self) -> HomeFilters | None:
        return self.filters.with_page(str(self.number + 1)) if self.number * PAGE_SIZE < self.total else None

    @property
    def previous(self) -> HomeFilters | None:
        return self.filters.with_page(str(self.number - 1)) if self.number > 1 else None


class Home:
    def __init__(self, catalogue: Catalogue, store: Store, layout: Layout) -> None:
        self._catalogue = catalogue
        self._store = store
        self._layout = layout
        self._manifests: dict[tuple[str, str, str], tuple[Manifest, float]] = {}

    async def page(self, entries: list[Entry], params: QueryParams, frontends: Frontends) -> HomePage:
        """Of these sessions, in the catalogue's order, the page that an address asks for."""
        filters, number = read_filters(params), _number(params.get("page"))
        tests = self._tests(filters)
        filters = msgspec.structs.replace(filters, namespaces=sorted({entry.ref.namespace for entry in entries}))
        matching = _in_order([entry for entry in entries if all(test(entry) for test in tests)], filters.sort)
        shown = matching[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        rows = list(await asyncio.gather(*(self.row(entry) for entry in shown)))
        dashboards = [frontend.version for frontend in frontends.installed()]
        return HomePage(_with_dashboards(rows, frontends), filters, len(matching), number, dashboards)

    def _tests(self, filters: HomeFilters) -> list[Test]:
        """Only what a listing knows of a session is asked for, and only what was chosen."""
        tests: list[Test] = []
        if filters.namespace:
            tests.append(lambda entry: entry.ref.namespace == filters.namespace)
        if filters.owner:
            kind, _, name = filters.owner.partition("/")
            wanted = None if kind == "none" else kind
            tests.append(lambda entry: entry.ref.owner_kind == wanted and name in ("", entry.ref.owner_name))
        start, end = _span(filters)
        if (start, end) != (None, None):
            tests.append(lambda entry: (start or 0) <= (entry.started_ms or 0) < (end or float("inf")))
        if filters.state:
            tests.append(lambda entry: self._catalogue.state(entry) == filters.state)
        if words := filters.q.lower().split():
            tests.append(lambda entry: _has(_text(entry), words))
        return tests

    async def row(self, entry: Entry) -> SessionRow:
        start, end, found = await asyncio.gather(
            self._catalogue.start(entry), self._catalogue.end(entry), self._manifest(entry)
        )
        manifest = found if isinstance(found, Manifest) else None
        state = self._catalogue.state(entry)
        last_ms = manifest.last_ns // 1_000_000 if manifest and manifest.last_ns else None
        vanished_ms = int(entry.alive * 1000) if entry.alive else None
        ended_ms = None if state == RUNNING else end.ended_ms if end else last_ms or vanished_ms
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
            ended_ms=ended_ms,
            ray_version=(start.ray_version if start else None) or (manifest.ray_version if manifest else None),
            size_bytes=manifest.counts.size_bytes if manifest else None,
            counts=_counts(manifest) if manifest else None,
            unreadable=isinstance(found, StoreError),
        )

    async def _manifest(self, entry: Entry) -> Manifest | StoreError | None:
        """What the session's index says of it; of one that is closed as the session is now, it is kept for a while."""
        closing, now = await self._catalogue.closing(entry), time.monotonic()
        known, until = self._manifests.get(entry.ref.identity, (None, now))
        if known and known.closing == closing and now < until:
            return known
        try:
            manifest = await read_latest(self._store, self._layout, entry.ref)
        except StoreError as error:
            return error
        if manifest and manifest.closing:
            self._manifests[entry.ref.identity] = msgspec.structs.replace(manifest, files={}), now + _FRESH
        return manifest


def read_filters(params: QueryParams) -> HomeFilters:
    """What is chosen in an address; a value that means nothing is told, so that nobody trusts the wrong list."""
    owner = params.get("owner", "").strip().lower() or None
    filters = HomeFilters(
        q=params.get("q", "").strip(),
        namespace=params.get("namespace") or None,
        state=_one_of(params, "state", web.SESSION_STATES),  # type: ignore[arg-type]
        owner=owner,
        since=params.get("since") or None,
        start=params.get("from") or None,
        end=params.get("to") or None,
        sort=_one_of(params, "sort", web.SORTS),
        page=params.get("page") or None,
    )
    if owner and owner.partition("/")[0] not in web.OWNERS:
        raise UsageError(f"owner is rayjob, rayservice, none, or a kind and a name (rayjob/nightly), not {owner!r}")
    _span(filters)
    return filters


def _one_of(params: QueryParams, name: str, choices: tuple[str, ...]) -> str | None:
    given = params.get(name) or None
    if given is not None and given not in choices:
        raise UsageError(f"{name} is one of {', '.join(choices)}, not {given!r}")
    return given


def _number(page: str | None) -> int:
    if not page:
        return 1
    if not re.fullmatch("[0-9]+", page) or int(page[:20]) == 0:
        raise UsageError(f"page is a number from 1 on, not {page!r}")
    return min(int(page[:20]), _LARGEST_PAGE)


def _span(filters: HomeFilters) -> tuple[int | None, int | None]:
    """From when to when a session must have started, in ms."""
    start, end = _moment("from", filters.start), _moment("to", filters.end, whole_day=True)
    if filters.since:
        found = re.fullmatch("([0-9]{1,5})([hd])", filters.since)
        if not found:
            raise UsageError(f"since is a number of hours or days (24h, 7d), not {filters.since!r}")
        since = int((time.time() - int(found[1]) * _HOURS[found[2]] * 3600) * 1000)
        start = max(start or 0, since)
    return start, end


def _moment(name: str, text: str | None, *, whole_day: bool = False) -> int | None:
    """A day, a time with or without a zone (UTC then), or ms since 1970."""
    if not text:
        return None
    if re.fullmatch("[0-9]{9,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if whole_day and re.fullmatch("[0-9-]+", text):
            moment += timedelta(days=1)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(f"{name} is a day or a time such as 2026-11-15 or 2026-11-15T19:20Z, not {text!r}") from None


def _in_order(entries: list[Entry], sort: str | None) -> list[Entry]:
    """The catalogue's own order is that of the usual view, and that of what is alike."""
    if not sort:
        return entries
    key = {
        "started": lambda entry: entry.started_ms or 0,
        "cluster": lambda entry: entry.ref.cluster,
        "namespace": lambda entry: entry.ref.namespace,
    }[sort.lstrip("-")]
    return sorted(entries, key=key, reverse=sort.startswith("-"))


def _has(text: str, words: list[str]) -> bool:
    return all(word in text for word in words)


def _text(entry: Entry) -> str:
    ref = entry.ref
    return f"{ref.namespace} {ref.cluster} {ref.session} {ref.owner_name or ''}".lower()


def _with_dashboards(rows: list[SessionRow], frontends: Frontends) -> list[SessionRow]:
    chosen = {version: frontends.choose(version) for version in {row.ray_version for row in rows}}
    found = {version: frontend.version for version, frontend in chosen.items() if frontend}
    return [msgspec.structs.replace(row, dashboard=found.get(row.ray_version)) for row in rows]


def _counts(manifest: Manifest) -> SessionCounts:
    counts = manifest.counts
    return SessionCounts(
        jobs=counts.jobs,
        tasks=counts.tasks,
        failed_tasks=counts.failed_tasks,
        actors=counts.actors,
        nodes=counts.nodes,
        gaps=counts.gaps,
    )
