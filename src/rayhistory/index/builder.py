"""Folds sessions on demand: at most a few at once, one per session, in processes of their own."""

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from rayhistory.errors import FoldFailed, NotIndexedYet, StoreUnavailable
from rayhistory.index.cache import IndexCache
from rayhistory.index.child import child_process
from rayhistory.index.claims import Claims
from rayhistory.index.fold import FoldJob, FoldReport
from rayhistory.index.manifest import Closing, Manifest, read_latest
from rayhistory.index.moments import Moments
from rayhistory.index.overlay import index_store
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
_LOOK_AGAIN = 5.0
"""A session that was compared with the store within this time is not compared again."""


class _Running(msgspec.Struct):
    task: "asyncio.Task[Manifest]"
    report: FoldReport


class IndexBuilder:
    def __init__(self, settings: Settings, store: Store, layout: Layout) -> None:
        self._settings = settings
        self._store = store
        self._layout = layout
        self._indexes = index_store(store, settings)
        self._cache = IndexCache(Path(settings.cache_dir) / "index", self._indexes, layout, settings.cache_size)
        self._scratch = Path(settings.cache_dir) / "scratch"
        self._claims = Claims(self._indexes, layout)
        self._slots = asyncio.Semaphore(settings.folds)
        self._moments = Moments(settings, self._cache, self._slots)
        self._running: dict[tuple[str, str, str], _Running] = {}
        self._opened: dict[tuple[str, str, str], tuple[float, OpenIndex]] = {}

    async def open(
        self,
        ref: SessionRef,
        closing: Closing | None,
        patience: float | None = None,
        *,
        rebuild: bool = False,
        extend: bool = False,
    ) -> OpenIndex:
        """The session's index: as it is in the store when that covers everything, else after folding.

        A running session grows all the time: what there is of it is served at once, and the next visit sees more.
        With `rebuild`, what is in the store is not trusted; with `extend`, what is new is waited for.
        """
        if rebuild:
            return self._load(ref, await self._replacement(ref, closing, patience))
        known = self._opened.get(ref.identity)
        fresh = known is not None and time.monotonic() - known[0] < _LOOK_AGAIN
        if known and fresh and known[1].manifest.closing == closing:
            return known[1]
        manifest = await read_latest(self._indexes, self._layout, ref)
        covered = manifest is not None and await self._covers(ref, manifest, closing)
        if manifest is None or (not covered and (extend or closing is not None)):
            manifest = await self._folded(ref, closing, patience)
        elif not covered:
            self._start(ref, closing)
        return self._load(ref, manifest)

    async def open_as_of(
        self, ref: SessionRef, closing: Closing | None, moment_ms: int, patience: float | None = None
    ) -> OpenIndex:
        """The index as of a moment; from the last sign of life on, that is the index itself."""
        index = await self.open(ref, closing, patience)
        ns = moment_ms * 1_000_000 + 999_999
        last = max(index.manifest.last_ns or 0, closing.ns if closing else 0)
        if ns >= last:
            return index
        return await self._moments.open(ref, index.manifest, ns, _PATIENCE if patience is None else patience)

    def forget(self, ref: SessionRef) -> None:
        """The next visitor looks at the store again."""
        self._opened.pop(ref.identity, None)

    async def close(self) -> None:
        """Ends the folds that are going on: their processes, too."""
        tasks = [running.task for running in self._running.values()]
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
        self._opened[ref.identity] = (time.monotonic(), index)
        return index

    async def _covers(self, ref: SessionRef, manifest: Manifest, closing: Closing | None) -> bool:
        if manifest.closing != closing:
            return False
        return manifest.covered == digest(await list_sources(self._store, self._layout, ref))

    async def _folded(
        self, ref: SessionRef, closing: Closing | None, patience: float | None = None, *, fresh: bool = False
    ) -> Manifest:
        """The manifest of a fold that closes the session as asked; one that is under way may close it otherwise."""
        deadline = time.monotonic() + (_PATIENCE if patience is None else patience)
        while True:
            running = self._start(ref, closing, fresh=fresh)
            try:
                manifest = await asyncio.wait_for(asyncio.shield(running.task), max(0, deadline - time.monotonic()))
            except TimeoutError:
                raise NotIndexedYet(running.report.detail, running.report.progress) from None
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
        if not task.cancelled() and task.exception():
            log.error("fold failed", extra={"session": ref.path, "reason": str(task.exception())})

    async def _fold(self, ref: SessionRef, closing: Closing | None, *, fresh: bool) -> Manifest:
        if not fresh and (theirs := await self._by_another(ref, closing)):
            return theirs
        async with self._slots, self._claims.hold(ref):
            log.info("fold begins", extra={"session": ref.path})
            self._say(ref, FoldReport(detail="starting"))
            try:
                with scratch_directory(self._scratch) as scratch:
                    async with child_process("rayhistory.index.fold") as process:
                        job = FoldJob(msgspec.to_builtins(self._settings), ref, closing, str(scratch), fresh)
                        return await self._follow(process, job)
            except (OSError, msgspec.DecodeError) as error:
                raise FoldFailed(f"{ref.path} could not be folded: {error}") from error

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
        if running := self._running.get(ref.identity):
            running.report = report

    async def _follow(self, process: asyncio.subprocess.Process, job: FoldJob) -> Manifest:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101
        complaint = asyncio.create_task(process.stderr.read())
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        report = FoldReport()
        async for line in process.stdout:
            report = msgspec.json.decode(line, type=FoldReport)
            self._say(job.ref, report)
        await process.wait()
        if report.outage:
            raise StoreUnavailable(report.outage)
        if report.manifest is None:
            raise _failure(job.ref, (await complaint).decode(errors="replace"))
        facts = {"session": job.ref.path, "events": report.manifest.events, "seconds": report.manifest.seconds}
        log.info("fold done", extra=facts)
        return report.manifest


def _failure(ref: SessionRef, complaint: str) -> FoldFailed:
    log.error("fold process failed", extra={"session": ref.path, "output": complaint[-4000:]})
    last = (complaint.strip().splitlines() or ["no reason given"])[-1]
    return FoldFailed(f"{ref.path} could not be folded: {last[:500]}")
