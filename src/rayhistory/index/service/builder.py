"""Build indexes on demand, in child processes.

Each session has at most one fold, and the number of folds is limited.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import IndexFailed, SessionNotIndexed, StoreError
from rayhistory.index.fold.fold_process import FoldJob, FoldReport
from rayhistory.index.fold.sources import Source, list_sources, sources_digest
from rayhistory.index.leases import Leases
from rayhistory.index.manifest import LatestIndex, Manifest, read_latest_and_next, read_latest_manifest
from rayhistory.index.overlay import index_store
from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.index.products.product_engine import ProductEngine
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.scratch import scratch_directory
from rayhistory.index.service.as_of_cache import AsOfCache, AsOfCaller
from rayhistory.index.service.fold_engine import FoldEngine, ProcessEngine
from rayhistory.index.service.slots import SlotRequest, Slots
from rayhistory.index.table_cache import TableCache
from rayhistory.lru import LruCache
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_DEFAULT_TIMEOUT_S = 25.0
"""Time that a request waits for a fold. It is below 30 s, because Ray's dashboard proxy gives up then."""
_LEASE_POLL_INTERVAL_S = 1.0
_MIN_PROGRESS_FOR_ESTIMATE = 0.05
_PROGRESS_LOG_INTERVAL_S = 10.0
_MAX_LISTING_AGE_S = 5.0
"""Maximum age of a listing of sources. A fold that waited longer for its slot lists its sources again."""
_FRESH_FOR_S = 5.0
"""An index is checked for new objects at most once in this time."""
_RETRY_AFTER_S = 60.0
"""Time after a failed fold before the session is folded again. Requests do not shorten it, to keep slots free."""
_POINTS_PER_SESSION = 1 << 16
_MAX_LEAD_MS, _LEAD_STEP_MS = 600_000, 1000
_VISIT_LASTS_S = 300.0
"""Sessions that were opened within this time are extended first."""
_MAX_OPEN_INDEXES = 1000
"""Maximum number of manifests in memory. All other manifests are read from the store again."""


class _RunningFold(msgspec.Struct):
    task: "asyncio.Task[Manifest]"
    report: FoldReport
    slot: SlotRequest
    started: float = 0.0
    """Time when the fold started, after it had waited for a slot or another server."""
    logged: float = 0.0

    def describe(self) -> str:
        """Return the current step and the estimated time left."""
        progress = self.report.progress
        if progress < _MIN_PROGRESS_FOR_ESTIMATE:
            return self.report.detail
        left = (time.monotonic() - self.started) * (1 - progress) / progress
        return f"{self.report.detail}, about {max(1, round(left))} s left"


class _SourceListing(msgspec.Struct):
    """A session's sources, listed once and passed on to the fold."""

    sources: list[Source]
    listed_at: float

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    def is_covered_by(self, manifest: Manifest, closing: Closing | None) -> bool:
        return manifest.closing == closing and manifest.covered == sources_digest(self.sources)


class IndexBuilder:
    """Opens the index of a session and folds the session if its index is missing or outdated."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        layout: Layout,
        engine: FoldEngine | None = None,
        products: tuple[str, ...] = (),
        *,
        product_engine: ProductEngine | None = None,
    ) -> None:
        """`products` are the dotted paths of the products that are built after the tables."""
        self._processes = ProcessEngine()
        self._engine: FoldEngine = engine or self._processes
        self._settings = settings
        self._store = store
        self._layout = layout
        self._index_store = index_store(store, settings)
        self._cache = TableCache(Path(settings.cache_dir) / "index", self._index_store, layout, settings.cache_size)
        self._scratch = Path(settings.cache_dir) / "scratch"
        self._leases = Leases(self._index_store)
        self._slots = Slots(settings.index_workers)
        self._as_of_cache = AsOfCache(settings, self._cache)
        self.products = ProductBuilder(
            settings, self._index_store, layout, self._cache, products, engine=product_engine
        )
        self._checks: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[str, str, str], _RunningFold] = {}
        self._opened: dict[tuple[str, str, str], tuple[float, OpenIndex]] = {}
        self._rebuilt: LruCache[tuple[str, str, str], tuple[float, str]] = LruCache(_MAX_OPEN_INDEXES)
        """For each session whose index could not be read: the time of the rebuild, and the folder of the new index."""
        self._failed: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._visits: LruCache[tuple[str, str, str], bool] = LruCache(_MAX_OPEN_INDEXES, ttl=_VISIT_LASTS_S)

    async def open(
        self,
        ref: SessionRef,
        closing: Closing | None,
        timeout_s: float | None = None,
        *,
        rebuild: bool = False,
        extend: bool = False,
    ) -> OpenIndex:
        """Return the session's index. Fold the session first if there is no index for its current state.

        An existing index is returned at once, and checked for new objects in the background. New objects are visible to
        the next request. `extend` waits for this check. `rebuild` replaces an index that cannot be read.
        """
        if not extend:
            self._visits.put(ref.identity, True)
        if rebuild:
            return self._load(ref, await self._replace_index(ref, closing, timeout_s))
        opened = self._opened.get(ref.identity)
        fresh = opened is not None and time.monotonic() - opened[0] < _FRESH_FOR_S
        if opened and fresh and opened[1].manifest.closing == closing:
            return opened[1]
        manifest = await read_latest_manifest(self._index_store, self._layout, ref)
        if manifest is None or manifest.closing != closing:
            manifest = await self._fold_and_wait(ref, closing, timeout_s)
        elif not extend:
            self._check_later(ref, manifest, closing)
        elif listing := await self._uncovered(ref, manifest):
            manifest = await self._fold_and_wait(ref, closing, timeout_s, listing=listing)
        return self._load(ref, manifest)

    async def extend(self, ref: SessionRef, closing: Closing | None) -> Manifest | None:
        """Fold new objects, after folds that requests wait for. Return None if another server is folding them."""
        manifest, listing = await self.existing(ref, closing), None
        if manifest and (listing := await self._uncovered(ref, manifest)) is None:
            return manifest
        if failure := self._recent_failure(ref):
            raise IndexFailed(failure)
        if ref.identity not in self._running and await self._leases.is_held(self._layout.lease_key(ref)):
            return None
        return await asyncio.shield(self._start(ref, closing, listing=listing, urgent=False).task)

    def is_visited(self, identity: tuple[str, str, str]) -> bool:
        """Return whether a visitor has opened the session in the last minutes."""
        return identity in self._visits

    async def existing(self, ref: SessionRef, closing: Closing | None) -> Manifest | None:
        """Return the manifest of the latest index; None if there is none for this session end."""
        manifest = await read_latest_manifest(self._index_store, self._layout, ref)
        return manifest if manifest and manifest.closing == closing else None

    async def open_as_of(
        self, ref: SessionRef, closing: Closing | None, as_of_ms: int, timeout_s: float | None = None, visitor: str = ""
    ) -> OpenIndex:
        """Return the index as of a point in time. After the last event this is the latest index."""
        index = await self.open(ref, closing, timeout_s)
        last = max(index.manifest.last_ns or 0, closing.ns if closing else 0)
        if index.manifest.first_ns is not None:
            as_of_ms = quantize_ms(as_of_ms, index.manifest.first_ns // 1_000_000, last // 1_000_000)
        ns = as_of_ms * 1_000_000 + 999_999
        if last and ns >= last:
            return index
        caller = AsOfCaller(visitor, _DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)
        return await self._as_of_cache.open(ref, index.manifest, ns, caller)

    def running(self) -> dict[str, str]:
        """Return the current step of each running fold, by session."""
        return {"/".join(identity): fold.describe() for identity, fold in self._running.items() if fold.started}

    def forget(self, ref: SessionRef) -> None:
        """Forget the manifest, so that the next request reads it from the store."""
        self._opened.pop(ref.identity, None)

    async def close(self) -> None:
        """Cancel running folds and end their processes."""
        await self._as_of_cache.close()
        await self.products.close()
        tasks: list[asyncio.Task[Any]] = [*self._checks, *(running.task for running in self._running.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._processes.close()

    def warm_up(self) -> None:
        """Start a process for the first fold, and always keep one ready."""
        self._processes.keep_warm()

    async def _replace_index(self, ref: SessionRef, closing: Closing | None, timeout_s: float | None) -> Manifest:
        """Replace an unreadable index by a newer generation of another process, or by a full fold.

        If the index was just rebuilt and still cannot be read, it is not rebuilt again.
        """
        opened = self._opened.get(ref.identity)
        rebuilt_at, rebuilt = self._rebuilt.get(ref.identity) or (0.0, "")
        if opened and opened[1].manifest.build == rebuilt and time.monotonic() - rebuilt_at < _RETRY_AFTER_S:
            raise IndexFailed(f"index of {ref.path} was rebuilt and still cannot be read")
        self.forget(ref)
        latest = await read_latest_manifest(self._index_store, self._layout, ref)
        if opened and latest and latest.generation > opened[1].manifest.generation:
            return latest
        manifest = await self._fold_and_wait(ref, closing, timeout_s, from_scratch=True)
        self._rebuilt.put(ref.identity, (time.monotonic(), manifest.build))
        return manifest

    def _load(self, ref: SessionRef, manifest: Manifest) -> OpenIndex:
        index = self._cache.open(ref, manifest)
        if len(self._opened) >= _MAX_OPEN_INDEXES:
            self._opened.clear()
        self._opened[ref.identity] = (time.monotonic(), index)
        return index

    async def _list(self, ref: SessionRef) -> _SourceListing:
        return _SourceListing(await list_sources(self._store, self._layout, ref), time.monotonic())

    async def _uncovered(self, ref: SessionRef, manifest: Manifest) -> _SourceListing | None:
        """List the session's sources. Return None if the index covers exactly these."""
        listing = await self._list(ref)
        return None if manifest.covered == sources_digest(listing.sources) else listing

    def _check_later(self, ref: SessionRef, manifest: Manifest, closing: Closing | None) -> None:
        async def check() -> None:
            try:
                if not self._recent_failure(ref) and (listing := await self._uncovered(ref, manifest)):
                    self._start(ref, closing, listing=listing)
            except StoreError as error:
                log.warning(
                    "cannot look for new data of the session, serving its present index",
                    extra={"session": ref.path, "reason": str(error)},
                )

        task = asyncio.create_task(check())
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _fold_and_wait(
        self,
        ref: SessionRef,
        closing: Closing | None,
        timeout_s: float | None = None,
        *,
        from_scratch: bool = False,
        listing: _SourceListing | None = None,
    ) -> Manifest:
        """Fold and return the manifest. If a running fold assumes another session end, fold again."""
        deadline = time.monotonic() + (_DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)
        while True:
            if failure := self._recent_failure(ref):
                raise IndexFailed(failure)
            running = self._start(ref, closing, from_scratch=from_scratch, listing=listing)
            try:
                manifest = await asyncio.wait_for(asyncio.shield(running.task), max(0, deadline - time.monotonic()))
            except TimeoutError:
                raise SessionNotIndexed(running.describe(), running.report.progress) from None
            if manifest.closing == closing:
                return manifest

    def _start(
        self,
        ref: SessionRef,
        closing: Closing | None,
        *,
        from_scratch: bool = False,
        listing: _SourceListing | None = None,
        urgent: bool = True,
    ) -> _RunningFold:
        running = self._running.get(ref.identity)
        if running is None:
            slot = SlotRequest(urgent=urgent)
            task = asyncio.create_task(self._fold(ref, closing, slot, from_scratch=from_scratch, listing=listing))
            running = _RunningFold(task, FoldReport(detail="waiting for a free slot"), slot)
            self._running[ref.identity] = running
            task.add_done_callback(lambda done: self._done(ref, done))
        running.slot.urgent |= urgent
        return running

    def _done(self, ref: SessionRef, task: "asyncio.Task[Manifest]") -> None:
        self._running.pop(ref.identity, None)
        self._failed.pop(ref.identity, None)
        failure = None if task.cancelled() else task.exception()
        if failure:
            log.error(
                "indexing failed, a later request tries again", extra={"session": ref.path, "reason": str(failure)}
            )
        if isinstance(failure, IndexFailed):
            self._failed[ref.identity] = time.monotonic(), str(failure)

    def _recent_failure(self, ref: SessionRef) -> str:
        """Return the error of a recent failed fold, or an empty string."""
        failed_at, reason = self._failed.get(ref.identity, (0.0, ""))
        return reason if time.monotonic() - failed_at < _RETRY_AFTER_S else ""

    async def _fold(
        self, ref: SessionRef, closing: Closing | None, slot: SlotRequest, *, from_scratch: bool,
        listing: _SourceListing | None,
    ) -> Manifest:  # fmt: skip
        lease = self._layout.lease_key(ref)
        while True:
            if not from_scratch and (manifest := await self._wait_for_other_server(ref, closing)):
                return manifest
            listing = listing or await self._list(ref)
            async with self._slots.acquire(listing.size, slot), self._leases.hold(lease) as is_held:
                if not is_held and not from_scratch:
                    continue  # another server was faster
                if time.monotonic() - listing.listed_at > _MAX_LISTING_AGE_S:  # it waited for a slot, or for a server
                    listing = await self._list(ref)
                latest = await read_latest_and_next(self._index_store, self._layout, ref)
                manifest = latest[0]
                if from_scratch or manifest is None or not listing.is_covered_by(manifest, closing):
                    manifest = await self._fold_now(ref, closing, listing, latest, from_scratch=from_scratch)
            self.products.build_later(ref, manifest)
            return manifest

    async def _fold_now(
        self, ref: SessionRef, closing: Closing | None, listing: _SourceListing, latest: LatestIndex, *,
        from_scratch: bool,
    ) -> Manifest:  # fmt: skip
        log.info("indexing started", extra={"session": ref.path})
        self._on_report(ref, FoldReport(detail="starting"))
        if running := self._running.get(ref.identity):
            running.started = running.logged = time.monotonic()
        manifest = await self._run(ref, closing, listing, latest, from_scratch=from_scratch)
        facts = {
            "session": ref.path, "generation": manifest.generation, "events": manifest.events,
            "seconds": manifest.seconds,
        }  # fmt: skip
        log.info("indexing finished", extra=facts)
        return manifest

    async def _run(
        self, ref: SessionRef, closing: Closing | None, listing: _SourceListing, latest: LatestIndex | None, *,
        from_scratch: bool,
    ) -> Manifest:  # fmt: skip
        try:
            with scratch_directory(self._scratch) as scratch:
                settings = msgspec.to_builtins(self._settings)
                job = FoldJob(
                    settings, ref, closing, str(scratch), repair=from_scratch, sources=listing.sources, latest=latest
                )
                return await self._engine.fold(job, lambda report: self._on_report(ref, report))
        except IndexFailed as error:
            if from_scratch or await read_latest_manifest(self._index_store, self._layout, ref) is None:
                raise
            log.warning("index update failed, rebuilding it", extra={"session": ref.path, "reason": str(error)})
        except (OSError, msgspec.DecodeError) as error:
            raise IndexFailed(f"indexing {ref.path} failed: {error}") from error
        # The merged tables of the previous generation may be damaged.
        return await self._run(ref, closing, listing, None, from_scratch=True)

    async def _wait_for_other_server(self, ref: SessionRef, closing: Closing | None) -> Manifest | None:
        """Wait while another server holds a lease. Return the manifest that it publishes, if that is up to date."""
        while await self._leases.is_held(self._layout.lease_key(ref)):
            self._on_report(ref, FoldReport(detail="another server is indexing this session"))
            await asyncio.sleep(_LEASE_POLL_INTERVAL_S)
            manifest = await read_latest_manifest(self._index_store, self._layout, ref)
            if manifest and manifest.closing == closing and not await self._uncovered(ref, manifest):
                return manifest
        return None

    def _on_report(self, ref: SessionRef, report: FoldReport) -> None:
        running = self._running.get(ref.identity)
        if running:
            running.report = report
            if running.started and time.monotonic() - running.logged > _PROGRESS_LOG_INTERVAL_S:
                running.logged = time.monotonic()
                log.info("indexing in progress", extra={"session": ref.path, "detail": running.describe()})


def quantize_ms(as_of_ms: int, first_ms: int, last_ms: int) -> int:
    """Round a time up to one of a limited number of points, so that neighbouring times share their tables.

    The points are a millisecond apart in a session of a minute, and about a second apart in a session of a day. They
    are also a second apart before the first event, because the head node may have started before it.
    """
    step = max(1, (last_ms - first_ms) // _POINTS_PER_SESSION)
    if as_of_ms >= first_ms:
        return first_ms - (first_ms - as_of_ms) // step * step
    if as_of_ms < first_ms - _MAX_LEAD_MS:
        return 0
    return min(first_ms - 1, first_ms - (first_ms - as_of_ms) // _LEAD_STEP_MS * _LEAD_STEP_MS)
