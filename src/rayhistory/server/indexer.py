"""Indexes sessions before anybody asks: a session that is indexed as it grows opens at once when it ends."""

import asyncio
import logging
import time
from collections.abc import Callable

from rayhistory.errors import NotIndexedYet, RayHistoryError
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.manifest import Closing, Manifest
from rayhistory.server.catalogue import Catalogue, Entry

log = logging.getLogger(__name__)

_LOOK = 10.0
_TRY_AGAIN = 60.0
_SHARE = 5
"""A session is extended only after this many times the time of its last fold: most of the day is left to others."""
_LATE_FILES = 600.0
"""Other nodes may upload after the head's end. A session that has ended is looked at again after this time at the
soonest, and after as long as it had been over by then: what ended long ago costs nothing."""


class Indexer:
    def __init__(
        self, catalogue: Catalogue, builder: IndexBuilder, is_meant: Callable[[Entry], bool] = lambda entry: True
    ) -> None:
        """`is_meant` tells which sessions, of those that there are and of those that will come."""
        self._catalogue = catalogue
        self._builder = builder
        self._is_meant = is_meant
        self._next: dict[tuple[str, str, str], tuple[Closing | None, float]] = {}

    async def run(self, looking: float = _LOOK) -> None:
        """For ever, one session after the other, those that run first."""
        while True:
            try:
                while entry := await self._next_due():
                    await self.index(entry)
            except RayHistoryError as error:
                log.warning("indexing waits", extra={"reason": str(error)})
            except Exception:
                log.exception("indexing goes on in a while")
            await asyncio.sleep(looking)

    async def index(self, entry: Entry) -> Manifest | None:
        """Folds what is new of a session; None when it cannot be folded, which is in the log."""
        closing = await self._catalogue.closing(entry)
        while True:
            try:
                opened = await self._builder.open(entry.ref, closing, extend=True)
            except NotIndexedYet:
                continue
            except RayHistoryError as error:
                log.error("cannot be indexed", extra={"session": entry.ref.path, "reason": str(error)})  # noqa: TRY400
                self._next[entry.ref.identity] = closing, time.monotonic() + _TRY_AGAIN
                return None
            break
        rest = _since_the_end(entry, opened.manifest) if closing else opened.manifest.seconds * _SHARE
        self._next[entry.ref.identity] = closing, time.monotonic() + rest
        return opened.manifest

    async def _next_due(self) -> Entry | None:
        """Looked for anew each time: what runs, and what has just ended, does not wait for a long list of old ones."""
        entries = list(filter(self._is_meant, await self._catalogue.entries()))
        for entry in entries:
            if await self._is_due(entry):
                return entry
        here = {entry.ref.identity for entry in entries}
        self._next = {identity: when for identity, when in self._next.items() if identity in here}
        return None

    async def _is_due(self, entry: Entry) -> bool:
        """When its time has come; or at once when it has ended since, or had vanished and is back."""
        known = self._next.get(entry.ref.identity)
        return known is None or time.monotonic() >= known[1] or known[0] != await self._catalogue.closing(entry)


def _since_the_end(entry: Entry, manifest: Manifest) -> float:
    """How long the session has been over, in seconds."""
    closed_ns = manifest.closing.ns if manifest.closing else 0
    last_ms = max(closed_ns // 10**6, (manifest.last_ns or 0) // 10**6, entry.started_ms or 0)
    return max(_LATE_FILES, time.time() - last_ms / 1000)
