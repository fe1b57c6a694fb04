"""Index sessions before anyone opens them: a session that is indexed as it grows opens at once when it ends."""

import asyncio
import logging
import time
from collections.abc import Callable

from rayhistory.errors import RayHistoryError, SessionNotIndexed
from rayhistory.index.manifest import Manifest
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.sessions.records import Closing

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 10.0
_RETRY_AFTER_S = 60.0
_PAUSE_FACTOR = 5
"""A running session rests for this many times the duration of its last fold, to leave CPU for others."""
_MIN_RECHECK_S = 600.0
"""Nodes may upload after the head has ended, so an ended session is checked again: at first after this time, then after
as long as it has been over. Sessions that ended long ago cost nothing."""


class AheadIndexer:
    """Indexes the selected sessions of a store one after the other, running ones first."""

    def __init__(
        self,
        catalog: SessionCatalog,
        builder: IndexBuilder,
        selected: Callable[[CatalogEntry], bool] = lambda entry: True,
    ) -> None:
        """`selected` chooses sessions, also those that appear later."""
        self._catalog = catalog
        self._builder = builder
        self._selected = selected
        self._schedule: dict[tuple[str, str, str], tuple[Closing | None, float]] = {}

    async def run(self, poll_interval_s: float = _POLL_INTERVAL_S) -> None:
        """Index until cancelled."""
        while True:
            try:
                while entry := await self._next_due():
                    await self.index(entry)
            except RayHistoryError as error:
                log.warning("cannot list sessions to index, retrying", extra={"reason": str(error)})
            except Exception:
                log.exception("unexpected error while indexing, retrying")
            await asyncio.sleep(poll_interval_s)

    async def index(self, entry: CatalogEntry) -> Manifest | None:
        """Fold the new objects of a session. Log a failure and return None."""
        closing = await self._catalog.closing(entry)
        while True:
            try:
                opened = await self._builder.open(entry.ref, closing, extend=True)
            except SessionNotIndexed:
                continue
            except RayHistoryError as error:
                log.error("indexing failed, retrying later", extra={"session": entry.ref.path, "reason": str(error)})  # noqa: TRY400
                self._schedule[entry.ref.identity] = closing, time.monotonic() + _RETRY_AFTER_S
                return None
            break
        pause_s = _recheck_after_s(entry, opened.manifest) if closing else opened.manifest.seconds * _PAUSE_FACTOR
        self._schedule[entry.ref.identity] = closing, time.monotonic() + pause_s
        return opened.manifest

    async def existing(self, entry: CatalogEntry) -> Manifest | None:
        """Return the manifest of the session's tables; None if there are none for its present end."""
        return await self._builder.existing(entry.ref, await self._catalog.closing(entry))

    async def _next_due(self) -> CatalogEntry | None:
        """Return the first session that is due.

        The catalog is read each time, so that running and just ended sessions do not wait behind many old ones.
        """
        entries = list(filter(self._selected, await self._catalog.entries()))
        for entry in entries:
            if await self._is_due(entry):
                return entry
        listed = {entry.ref.identity for entry in entries}
        self._schedule = {identity: when for identity, when in self._schedule.items() if identity in listed}
        return None

    async def _is_due(self, entry: CatalogEntry) -> bool:
        """A session is due when its rest is over, or as soon as it ends, vanishes or comes back."""
        scheduled = self._schedule.get(entry.ref.identity)
        return (
            scheduled is None or time.monotonic() >= scheduled[1] or scheduled[0] != await self._catalog.closing(entry)
        )


def _recheck_after_s(entry: CatalogEntry, manifest: Manifest) -> float:
    """Return the time since the session's end, at least `_MIN_RECHECK_S`."""
    closed_ns = manifest.closing.ns if manifest.closing else 0
    last_ns = max(closed_ns, manifest.last_ns or 0)
    stored = max(entry.end_stored or 0.0, entry.alive or 0.0, entry.appeared)
    return max(_MIN_RECHECK_S, time.time() - max(last_ns / 1e9, stored))
