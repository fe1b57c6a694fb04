"""The rows of the home page: sessions as the catalogue lists them, with what is known of those on this page only."""

import asyncio

from starlette.datastructures import QueryParams

from rayhistory import web
from rayhistory.errors import StoreError
from rayhistory.index.manifest import Manifest, read_latest
from rayhistory.layout import Layout
from rayhistory.server.catalogue import RUNNING, Catalogue, Entry
from rayhistory.storage import Store
from rayhistory.web import HomeFilters, SessionCounts, SessionRow

PAGE_SIZE = 50


class Home:
    def __init__(self, catalogue: Catalogue, store: Store, layout: Layout) -> None:
        self._catalogue = catalogue
        self._store = store
        self._layout = layout
        self._manifests: dict[tuple[str, str, str], Manifest] = {}

    async def page(self, params: QueryParams) -> tuple[list[SessionRow], HomeFilters, int, int]:
        """Rows, the filters in force, the number of sessions that match, and the page's number."""
        entries = await self._catalogue.entries()
        state = params.get("state") or None
        filters = HomeFilters(
            q=params.get("q", "").strip(),
            namespace=params.get("namespace") or None,
            state=state if state in web.SESSION_STATES else None,
            page=params.get("page") or None,
            namespaces=sorted({entry.ref.namespace for entry in entries}),
        )
        matching = [entry for entry in entries if self._matches(entry, filters)]
        number = int(filters.page) if filters.page and filters.page.isdecimal() and len(filters.page) < 9 else 1
        shown = matching[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] if number else []
        rows = await asyncio.gather(*(self.row(entry) for entry in shown))
        return list(rows), filters, len(matching), number

    def _matches(self, entry: Entry, filters: HomeFilters) -> bool:
        ref = entry.ref
        text = f"{ref.namespace} {ref.cluster} {ref.session} {ref.owner_name or ''}".lower()
        return (
            all(word in text for word in filters.q.lower().split())
            and filters.namespace in (None, ref.namespace)
            and filters.state in (None, self._catalogue.state(entry))
        )

    async def row(self, entry: Entry) -> SessionRow:
        start, end, manifest = await asyncio.gather(
            self._catalogue.start(entry), self._catalogue.end(entry), self._manifest(entry)
        )
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
        )

    async def _manifest(self, entry: Entry) -> Manifest | None:
        """What the session's index says of it; of one that is closed as the session is now, it is kept."""
        closing = await self._catalogue.closing(entry)
        known = self._manifests.get(entry.ref.identity)
        if known and known.closing == closing:
            return known
        try:
            manifest = await read_latest(self._store, self._layout, entry.ref)
        except StoreError:
            return None
        if manifest and manifest.closing:
            self._manifests[entry.ref.identity] = manifest
        return manifest


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
