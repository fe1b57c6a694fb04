"""Folds sessions on demand: at most a few at once, one per session, and apart from the serving process."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import FoldFailed, NotIndexedYet, StoreError
from rayhistory.index.cache import IndexCache
from rayhistory.index.claims import Claims
from rayhistory.index.engine import Engine, OwnProcess
from rayhistory.index.fold import FoldJob, FoldReport
from rayhistory.index.manifest import Closing, Manifest, read_latest
from rayhistory.index.moments import Moments
from rayhistory.index.overlay import index_store
from rayhistory.index.places import Places
from rayhistory.index.query import OpenIndex
from rayhistory.index.scratch import scratch_directory
from rayhistory.index.sources import digest, list_sources
from rayhistory.layout import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_PATIENCE = 25.0
"""Ray's dashboard proxy gives up after 30 s: an answer that takes longer is "not yet"."""
_LOOK_FOR_OTHERS = 1.0
_ENOUGH_TO_TELL = 0.05
_TELL_EVERY = 10.0
_LOOK_AGAIN = 5.0
"""A session that was compared with the store within this time is not compared again."""
_TRY_AGAIN = 60.0
"""What could not be folded is not tried again at once, however many ask for it: others wait for the place."""
_MOST_OPENED = 1000
"""So many are remembered; to forget one costs its next visitor a look at the store."""


class _Running(msgspec.Struct):
    task: "asyncio.Task[Manifest]"
    report: FoldReport
    began: float = 0.0
    """When the fold itself began; before, it waited for a free place, or for another server."""
    logged: float = 0.0

    def told(self) -> str:
        """How far it is, and how long it will take if it goes on like this."""
        progress = self.report.progress
        if progress < _ENOUGH_TO_TELL:
            return self.report.detail
        left = (time.monotonic() - self.began) * (1 - progress) / progress
        return f"{self.report.detail}, about {max(1, round(left))} s to go"


class IndexBuilder:
    def __init__(self, settings: Settings, store: Store, layout: Layout, engine: Engine | None = None) -> None:
        self._engine = engine or OwnProcess()
        self._settings = settings
        self._store = store
        self._layout = layout
        self._indexes = index_store(store, settings)
        self._cache = IndexCache(Path(settings.cache_dir) / "index", self._indexes, layout, settings.cache_size)
        self._scratch = Path(settings.cache_dir) / "scratch"
        self._claims = Claims(self._indexes, layout)
        self._places = Places(settings.folds)
        self._moments = Moments(settings, self._cache, self._places)
        self._looking: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[str, str, str], _Running] = {}
        self._opened: dict[tuple[str, str, str], tuple[float, OpenIndex]] = {}
        self._failed: dict[tuple[str, str, str], tuple[float, str]] = {}

    async def open(
        self,
        ref: SessionRef,
        closing: Closing | None,
        patience: float | None = None,
        *,
        rebuild: bool = False,
        extend: bool = False,
    ) -> OpenIndex:
        """The session's index: as it is in the store when it was made for the session's present state, else a new one.

        Whether it covers everything is looked at after the answer: what is new is there for the next visit. With
        `extend`, it is waited for; with `rebuild`, what is in the store is not trusted.
        """
        if rebuild:
            return self._load(ref, await self._replacement(ref, closing, patience))
        known = self._opened.get(ref.identity)
        fresh = known is not None and time.monotonic() - known[0] < _LOOK_AGAIN
        if known and fresh and known[1].manifest.closing == closing:
            return known[1]
        manifest = await read_latest(self._indexes, self._layout, ref)
        if manifest is None or manifest.closing != closing:
            manifest = await self._folded(ref, closing, patience)
        elif not extend:
            self._look_later(ref, manifest, closing)
        elif not await self._covers(ref, manifest, closing):
            manifest = await self._folded(ref, closing, patience)
        return self._load(ref, manifest)

    async def open_as_of(
        self, ref: SessionRef, closing: Closing | None, moment_ms: int, patience: float | None = None
    ) -> OpenIndex:
        """The index as of a moment; from the last sign of life on, that is the index itself."""
        index = await self.open(ref, closing, patience)
        ns = moment_ms * 1_000_000 + 999_999
        last = max(index.manifest.last_ns or 0, closing.ns if closing else 0)
        if last and ns >= last:
            return index
        return await self._moments.open(ref, index.manifest, ns, _PATIENCE if patience is None else patience)

    def forget(self, ref: SessionRef) -> None:
        """The next visitor looks at the store again."""
        self._opened.pop(ref.identity, None)

    async def close(self) -> None:
        """Ends the folds that are going on: their processes, too."""
        tasks: list[asyncio.Task[Any]] = [*self._looking, *(running.task for running in self._running.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _replacement(self, ref: SessionRef, closing: Closing | None, patience: float | None) -> Manifest:
        """For an index that cannot be read: a newer one, if another process has made it, else one of our own."""
        known = self._opened.get(ref.identity)
        self.forget(ref)
        latest = await read_latest(self._indexes, self._layout, ref)
        if known and latest and latest.generation > known[1].manifest.generation:
            return latest
        return await self._folded(ref, closing, patience, fresh=True)

    def _load(self, ref: SessionRef, manifest: Manifest) -> OpenIndex:
        index = self._cache.open(ref, manifest)
        if len(self._opened) >= _MOST_OPENED:
            self._opened.clear()
        self._opened[ref.identity] = (time.monotonic(), index)
        return index

    async def _covers(self, ref: SessionRef, manifest: Manifest, closing: Closing | None) -> bool:
        if manifest.closing != closing:
            return False
        return manifest.covered == digest(await list_sources(self._store, self._layout, ref))

    def _look_later(self, ref: SessionRef, manifest: Manifest, closing: Closing | None) -> None:
        async def look() -> None:
            try:
                if not self._failure(ref) and not await self._covers(ref, manifest, closing):
                    self._start(ref, closing)
            except StoreError as error:
                log.warning("a session was not looked at", extra={"session": ref.path, "reason": str(error)})

        task = asyncio.create_task(look())
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _folded(
        self, ref: SessionRef, closing: Closing | None, patience: float | None = None, *, fresh: bool = False
    ) -> Manifest:
        """The manifest of a fold that closes the session as asked; one that is under way may close it otherwise."""
        deadline = time.monotonic() + (_PATIENCE if patience is None else patience)
        while True:
            if failure := self._failure(ref):
                raise FoldFailed(failure)
            running = self._start(ref, closing, fresh=fresh)
            try:
                manifest = await asyncio.wait_for(asyncio.shield(running.task), max(0, deadline - time.monotonic()))
            except TimeoutError:
                raise NotIndexedYet(running.told(), running.report.progress) from None
            if manifest.closing == closing:
                return manifest

    def _start(self, ref: SessionRef, closing: Closing | None, *, fresh: bool = False) -> _Running:
        running = self._running.get(ref.identity)
        if running is None:
            task = asyncio.create_task(self._fold(ref, closing, fresh=fresh))
            running = _Running(task, FoldReport(detail="waiting for a free place"))
            self._running[ref.identity] = running
            task.add_done_callback(lambda done: self._done(ref, done))
        return running

    def _done(self, ref: SessionRef, task: "asyncio.Task[Manifest]") -> None:
        self._running.pop(ref.identity, None)
        self._failed.pop(ref.identity, None)
        failure = None if task.cancelled() else task.exception()
        if failure:
            log.error("fold failed", extra={"session": ref.path, "reason": str(failure)})
        if isinstance(failure, FoldFailed):
            self._failed[ref.identity] = time.monotonic(), str(failure)

    def _failure(self, ref: SessionRef) -> str:
        """Why the session could not be folded a moment ago."""
        when, why = self._failed.get(ref.identity, (0.0, ""))
        return why if time.monotonic() - when < _TRY_AGAIN else ""

    async def _fold(self, ref: SessionRef, closing: Closing | None, *, fresh: bool) -> Manifest:
        if not fresh and (theirs := await self._by_another(ref, closing)):
            return theirs
        size = sum(source.size for source in await list_sources(self._store, self._layout, ref))
        async with self._places.taken(size), self._claims.hold(ref):
            log.info("fold begins", extra={"session": ref.path})
            self._say(ref, FoldReport(detail="starting"))
            if running := self._running.get(ref.identity):
                running.began = running.logged = time.monotonic()
            manifest = await self._run(ref, closing, fresh=fresh)
            facts = {"session": ref.path, "events": manifest.events, "seconds": manifest.seconds}
            log.info("fold done", extra=facts)
            return manifest

    async def _run(self, ref: SessionRef, closing: Closing | None, *, fresh: bool) -> Manifest:
        try:
            with scratch_directory(self._scratch) as scratch:
                job = FoldJob(msgspec.to_builtins(self._settings), ref, closing, str(scratch), fresh)
                return await self._engine.fold(job, lambda report: self._say(ref, report))
        except FoldFailed as error:
            if fresh or await read_latest(self._indexes, self._layout, ref) is None:
                raise
            log.warning("a session is folded from its beginning", extra={"session": ref.path, "reason": str(error)})
        except (OSError, msgspec.DecodeError) as error:
            raise FoldFailed(f"{ref.path} could not be folded: {error}") from error
        return await self._run(ref, closing, fresh=True)  # what the generation before has merged may be damaged

    async def _by_another(self, ref: SessionRef, closing: Closing | None) -> Manifest | None:
        """What another server makes of the session, as long as it seems to be at it."""
        while await self._claims.is_held(ref):
            self._say(ref, FoldReport(detail="another server is indexing this session"))
            await asyncio.sleep(_LOOK_FOR_OTHERS)
            manifest = await read_latest(self._indexes, self._layout, ref)
            if manifest and await self._covers(ref, manifest, closing):
                return manifest
        return None

    def _say(self, ref: SessionRef, report: FoldReport) -> None:
        running = self._running.get(ref.identity)
        if running:
            running.report = report
            if running.began and time.monotonic() - running.logged > _TELL_EVERY:
                running.logged = time.monotonic()
                log.info("fold goes on", extra={"session": ref.path, "detail": running.told()})
