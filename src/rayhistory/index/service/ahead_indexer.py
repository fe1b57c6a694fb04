"""Index sessions before anyone opens them. A session that is indexed while it runs opens fast after its end."""

import asyncio
import logging
import time
from collections.abc import Callable

from rayhistory.errors import RayHistoryError, SessionNotIndexed
from rayhistory.index.manifest import Manifest
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.index.service.index_schedule import Candidate, Identity, IndexSchedule
from rayhistory.sessions.catalog import RUNNING, CatalogEntry, SessionCatalog
from rayhistory.sessions.records import Closing

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 10.0
_RETRY_AFTER_S = 60.0
_CONCURRENT_SESSIONS = 8
"""Maximum number of sessions that are checked for new objects concurrently. `--index-workers` limits the folds."""
_OTHER_SERVER_RECHECK_S = 5.0
_PAUSE_FACTOR = 5
"""The pause after a fold of a running session is this many times as long as the fold. It leaves CPU for others."""
_MIN_PAUSE_S = 2.0
_MIN_RECHECK_S = 600.0
"""Time after which an ended session is checked again, because nodes may upload late.

The next checks follow whenever the time since the session's end has doubled.
"""


class AheadIndexer:
    """Indexes the selected sessions of a store concurrently, in the order of `IndexSchedule`."""

    def __init__(
        self,
        catalog: SessionCatalog,
        builder: IndexBuilder,
        selected: Callable[[CatalogEntry], bool] = lambda entry: True,
        on_ended: Callable[[CatalogEntry, int], None] = lambda entry, generation: None,
    ) -> None:
        """`selected` decides which sessions are indexed. It is also asked about sessions that appear later.

        `on_ended` is called with each checked session that ended, and the generation of its index, which another
        process may have built.
        """
        self._catalog = catalog
        self._builder = builder
        self._selected = selected
        self._on_ended = on_ended
        self._schedule = IndexSchedule()
        self._entries: dict[Identity, CatalogEntry] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, poll_interval_s: float = _POLL_INTERVAL_S) -> None:
        """Index sessions until cancelled."""
        try:
            while True:
                try:
                    await self._start_due()
                except RayHistoryError as error:
                    log.warning("cannot list sessions for indexing, retrying", extra={"reason": str(error)})
                except Exception:
                    log.exception("unexpected error while indexing, retrying")
                await self._pause(poll_interval_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def index(self, entry: CatalogEntry) -> Manifest | None:
        """Fold the new objects of a session. Return None and log the error on failure."""
        closing = await self._catalog.closing(entry)
        while True:
            try:
                manifest = (await self._builder.open(entry.ref, closing, extend=True)).manifest
            except SessionNotIndexed:
                continue
            except RayHistoryError as error:
                self._log_failure(entry, error)
                manifest = None
            self._plan(entry, closing, manifest)
            return manifest

    async def existing(self, entry: CatalogEntry) -> Manifest | None:
        """Return the manifest of the session's tables; None if there are none for its current end."""
        return await self._builder.existing(entry.ref, await self._catalog.closing(entry))

    async def _start_due(self) -> None:
        """Start to index sessions that are due, a few at once."""
        entries = list(filter(self._selected, await self._catalog.entries()))
        now = time.monotonic()
        self._entries = {entry.ref.identity: entry for entry in entries}
        self._schedule.update(map(self._candidate, entries), now)
        visited = [identity for identity in self._entries if self._builder.is_visited(identity)]
        while len(self._tasks) < _CONCURRENT_SESSIONS and (identity := self._schedule.next(now, visited)):
            task = asyncio.create_task(self._extend(identity))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pause(self, poll_interval_s: float) -> None:
        """Wait until a session has been indexed, or the next one is due."""
        due_at = self._schedule.next_due_at() if len(self._tasks) < _CONCURRENT_SESSIONS else None
        now = time.monotonic()
        pause_s = min(poll_interval_s, max(0.1, due_at - now) if due_at is not None else poll_interval_s)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(pause_s)

    async def _extend(self, identity: Identity) -> None:
        entry = self._entries.get(identity)
        if entry is None:  # removed meanwhile
            self._schedule.done(identity, time.monotonic())
            return
        try:
            closing = await self._catalog.closing(entry)
            manifest = await self._builder.extend(entry.ref, closing)
        except Exception as error:  # noqa: BLE001 - one session must not keep the others from being indexed
            self._log_failure(entry, error)
            self._schedule.done(identity, time.monotonic() + _RETRY_AFTER_S)
            return
        if manifest is None:
            self._schedule.done(identity, time.monotonic() + _OTHER_SERVER_RECHECK_S)
        else:
            self._plan(entry, closing, manifest)
            if closing:
                self._on_ended(entry, manifest.generation)

    def _candidate(self, entry: CatalogEntry) -> Candidate:
        state = self._catalog.state(entry)
        last_sign = max(entry.end_stored or 0.0, entry.alive or 0.0)
        is_old = state != RUNNING and self._catalog.now() - last_sign > _MIN_RECHECK_S
        return Candidate(entry.ref.identity, (state, entry.ended, entry.end_stored), is_old)

    def _plan(self, entry: CatalogEntry, closing: Closing | None, manifest: Manifest | None) -> None:
        """Plan when the session is checked again."""
        pause_s = _RETRY_AFTER_S
        if manifest is not None:
            pause_s = (
                _recheck_after_s(entry, manifest) if closing else max(_MIN_PAUSE_S, manifest.seconds * _PAUSE_FACTOR)
            )
        self._schedule.done(entry.ref.identity, time.monotonic() + pause_s)

    def _log_failure(self, entry: CatalogEntry, error: Exception) -> None:
        log.error("indexing failed, retrying later", extra={"session": entry.ref.path, "reason": str(error)})


def _recheck_after_s(entry: CatalogEntry, manifest: Manifest) -> float:
    """Return the seconds until the next check: as many as since the session's end, at least `_MIN_RECHECK_S`."""
    closed_ns = manifest.closing.ns if manifest.closing else 0
    last_ns = max(closed_ns, manifest.last_ns or 0)
    stored = max(entry.end_stored or 0.0, entry.alive or 0.0, entry.appeared)
    return max(_MIN_RECHECK_S, time.time() - max(last_ns / 1e9, stored))
