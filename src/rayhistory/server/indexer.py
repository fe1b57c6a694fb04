"""Indexes sessions before anybody asks: a session that is indexed as it grows opens at once when it ends."""

import asyncio
import logging
import time

from rayhistory.errors import NotIndexedYet, RayHistoryError
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.manifest import Closing, Manifest
from rayhistory.server.catalogue import Catalogue, Entry

log = logging.getLogger(__name__)

_LOOK = 10.0
_SHARE = 5
"""A session is extended only after this many times the time of its last fold: most of the day is left to others."""


_LATE_FILES = 600.0
"""Other nodes may upload after the head's end, and a session that had vanished may come back."""


class Indexer:
    def __init__(self, catalogue: Catalogue, builder: IndexBuilder) -> None:
        self._catalogue = catalogue
        self._builder = builder
        self._next: dict[tuple[str, str, str], float] = {}
        self._finished: dict[tuple[str, str, str], tuple[Closing, float]] = {}

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
                self._next[entry.ref.identity] = time.monotonic() + 60
                return None
            break
        self._next[entry.ref.identity] = time.monotonic() + opened.manifest.seconds * _SHARE
        if closing and opened.manifest.closing == closing:
            self._finished[entry.ref.identity] = closing, time.monotonic()
        return opened.manifest

    async def _next_due(self) -> Entry | None:
        """Looked for anew each time: what runs, and what has just ended, does not wait for a long list of old ones."""
        entries = await self._catalogue.entries()
        for entry in entries:
            if await self._is_due(entry):
                return entry
        here = {entry.ref.identity for entry in entries}
        self._next = {identity: when for identity, when in self._next.items() if identity in here}
        self._finished = {identity: how for identity, how in self._finished.items() if identity in here}
        return None

    async def _is_due(self, entry: Entry) -> bool:
        if time.monotonic() < self._next.get(entry.ref.identity, 0):
            return False
        closing, when = self._finished.get(entry.ref.identity, (None, 0.0))
        settled = closing is not None and closing == await self._catalogue.closing(entry)
        return not settled or time.monotonic() - when > _LATE_FILES
