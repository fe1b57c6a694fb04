"""The collector of one node: takes events all the time, and keeps one session after the other.

Ray may be started again in the same pod: then the old session is closed while the new one begins. On SIGTERM,
Ray and the collector are told at the same time, so the collector goes on taking events until Ray is gone.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette

from rayhistory.collector.app import make_app
from rayhistory.collector.discovery import Raylet, Sighting, find_node, look, nameless, raylet
from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.ingest import Ingest
from rayhistory.collector.keeper import NOBODY_NAMES, SessionKeeper, Shared
from rayhistory.collector.leftovers import Leftovers, is_unfinished
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.record import node_seal, seal_node
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.spool import Spool
from rayhistory.collector.supervise import keep_going, pause, unless
from rayhistory.collector.upload import Uploader
from rayhistory.layout import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_LOOK = 1.0
_LOOK_FOR_END = 0.25
_KEPT_FOR_FLUSH = 10.0
_KEPT_FOR_SEAL = 2.0
_KEPT_FOR_EXIT = 1.0
_HURRY = 5.0
_EVENTS_ALONE = 5.0  # a session that has events but no directory for so long has none that we can see
_MB = 10**6
_SET_ASIDE_SHARE = 8


class Collector:
    """`cluster` is the name in force: that of the settings, or the host's."""

    def __init__(self, settings: Settings, cluster: str, store: Store) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._settings = settings
        self._cluster = cluster
        self._root = Path(settings.ray_tmp_root)
        self._nameless = nameless(self._root)
        metrics = Metrics()
        layout = Layout(settings.storage_root_dir, settings.storage_layout)
        compressed = settings.event_compression_enabled and not layout.old
        budget = settings.event_max_disk_mb * _MB
        spool = Spool(
            Path(settings.event_data_dir) / f"{cluster}_{settings.ray_cluster_namespace}",
            budget=budget - budget // _SET_ASIDE_SHARE,
            segment_size=settings.event_max_file_size_mb * _MB,
            segment_age=settings.event_rotation_interval,
            unpacked=not compressed,
        )
        aside = SetAside(spool.directory / "set-aside", metrics, budget // _SET_ASIDE_SHARE)
        uploader = Uploader(
            spool=spool,
            store=store,
            layout=layout,
            ref_of=self._ref,
            aside=aside,
            metrics=metrics,
            compressed=compressed,
        )
        ingest = Ingest(
            spool,
            aside,
            metrics,
            largest_body=min(settings.events_max_body, spool.largest),
            allow_remote=settings.events_allow_remote,
            token=settings.events_token,
        )
        self._shared = Shared(settings, store, layout, spool, uploader, ingest, metrics)
        self._leftovers = Leftovers(
            settings,
            store,
            layout,
            metrics,
            spool=spool.directory,
            ref_of=self._ref,
            kept=self._kept,
            events_of=lambda session: EventStreams(spool, session),
        )
        self._keeper: SessionKeeper | None = None
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._give_up = asyncio.Event()
        self._last_answers_taken = False
        self._tasks: list[asyncio.Task[None]] = []
        metrics.watch("log_lag_seconds", "how long new log bytes have been on their way to the store", self._log_lag)
        metrics.watch("spool_bytes", "bytes on the local disk that are not yet in the store", lambda: spool.bytes)
        metrics.watch("segments_waiting", "closed spool files that are not yet in the store", lambda: len(spool.closed))
        metrics.watch("spool_age_seconds", "age of the oldest thing that is not yet in the store", spool.oldest)
        metrics.watch(
            "last_answers_taken",
            "1 when the dashboard was asked a last time after SIGTERM: Ray may be stopped",
            lambda: self._last_answers_taken,
        )

    @property
    def app(self) -> Starlette:
        ingest = self._shared.ingest if self._settings.enable_event_collector else None
        return make_app(ingest, self._shared.metrics, self._why_not_ready)

    def _why_not_ready(self) -> str | None:
        return None if self._shared.spool.writable else f"the spool {self._shared.spool.directory} cannot be written"

    def _ref(self, session: str) -> SessionRef:
        return SessionRef(
            self._settings.ray_cluster_namespace,
            self._cluster,
            session,
            self._settings.owner_kind or None,
            self._settings.owner_name or None,
        )

    # While Ray runs

    async def start(self) -> None:
        """Raises UsageError when another collector uses the same spool."""
        try:
            await self._shared.spool.open()
        except OSError as error:
            log.error("the spool cannot be used yet, and is tried again", extra={"reason": str(error)})  # noqa: TRY400
        self._go("upload", self._shared.uploader.run)
        self._go("watch", self._watch)
        self._go("seal", self._seal)
        if self._settings.enable_log_collector:
            self._go("leftovers", self._leftovers.run)

    async def _watch(self) -> None:
        while True:
            await self._notice(await asyncio.to_thread(look, self._root))
            await self._shared.spool.rotate_due(self._settings.log_interval, but=self._kept())  # nobody packs the rest
            await self._name_strays()
            await asyncio.sleep(_LOOK)

    async def _seal(self) -> None:
        """Apart from `_watch`, because it waits for the store."""
        while True:
            await self._seal_what_was_left()
            await asyncio.sleep(_LOOK)

    async def _notice(self, sighting: Sighting | None, *, last: bool = False) -> None:
        keeper = self._keeper
        if sighting and (keeper is None or keeper.ref.session != sighting.session):
            if sighting.session not in self._closing and await self._is_to_be_kept(sighting, last=last):
                if self._keeper is keeper:  # `_watch` and `end` may both be here
                    self._change(sighting.session, sighting.directory)
            else:
                self._notice_events()
        elif sighting and keeper and keeper.directory is None:
            keeper.attach(sighting.directory)
        else:
            self._notice_events()
        if self._keeper:
            session = self._keeper.ref.session
            seen = sighting.node if sighting and sighting.session == session else None
            known = self._keeper.node if self._keeper.node != self._nameless else None
            if node := seen or known or self._shared.ingest.sender_of(session):
                await self._keeper.set_node(node)

    def _notice_events(self) -> None:
        """A session that we only hear of, also after another such one, and whatever `session_latest` leads to."""
        keeper, session = self._keeper, self._shared.ingest.latest_session(_EVENTS_ALONE)
        unseen = keeper is None or (keeper.directory is None and keeper.ref.session != session)
        if unseen and session and session not in self._closing:
            self._change(session, None)

    async def _is_to_be_kept(self, sighting: Sighting, *, last: bool) -> bool:
        """`session_latest` may lead to a session that ended long ago, while the next is about to start."""
        if self._shared.ingest.has_heard_of(sighting.session):
            return True
        if await asyncio.to_thread(raylet, sighting.directory) is Raylet.ALIVE:
            return True
        return last and await asyncio.to_thread(self._was_left, sighting)

    def _was_left(self, sighting: Sighting) -> bool:
        """An earlier process kept it, and nobody has brought it to its end: there is no later to do so."""
        spool = self._shared.spool
        return spool.knows(sighting.session) and is_unfinished(spool.directory, sighting.directory)

    def _log_lag(self) -> float:
        return self._keeper.log_lag() if self._keeper else 0.0

    def _kept(self) -> dict[str, str | None]:
        kept: dict[str, str | None] = {session: None for session, task in self._closing.items() if not task.done()}
        if self._keeper:
            kept[self._keeper.ref.session] = self._keeper.node
        return kept

    def _change(self, session: str, directory: Path | None) -> None:
        self._leftovers.release(session)
        if before := self._keeper:
            close = keep_going(
                "close", lambda: before.close("Ray began a new session", self._give_up), self._shared.metrics
            )
            self._closing[before.ref.session] = asyncio.create_task(close)
        self._keeper = SessionKeeper(self._shared, self._ref(session), directory)
        self._keeper.start()

    async def _name_strays(self) -> None:
        """Segments of sessions that are not kept: left from before, or of a Ray that we cannot see."""
        kept = self._keeper.ref.session if self._keeper else None
        for session in self._shared.spool.waiting_for_node() - {kept}:
            found = await asyncio.to_thread(find_node, self._root / session)
            node = found or self._shared.ingest.sender_of(session)
            if node is None and self._shared.spool.oldest(session) > NOBODY_NAMES:
                node = self._nameless
            if node:
                await self._shared.spool.name_node(session, node)

    async def _seal_what_was_left(self) -> None:
        """Sessions that are over: their seals tell of what an earlier process left behind, and of what came late."""
        spool = self._shared.spool
        for session, node in list(spool.to_seal.items()):
            if session in self._kept():
                del spool.to_seal[session]  # sealed at its own end
            elif not spool.segments(session) and await self._is_over(session):
                del spool.to_seal[session]  # what comes late meanwhile is another reason to seal it
                seal = node_seal(spool.node_of(session) or node or self._nameless, spool.counts(session), [])
                try:
                    await seal_node(
                        self._shared.store, self._shared.layout, self._ref(session), seal, self._shared.metrics
                    )
                except asyncio.CancelledError:
                    spool.to_seal.setdefault(session, node)
                    raise
                await spool.seal(session)
                log.info("what was left of a session is in the store", extra={"session": session})

    async def _is_over(self, session: str) -> bool:
        return await asyncio.to_thread(raylet, self._root / session) is Raylet.GONE

    # The end

    async def end(self, stop_listening: Callable[[], Awaitable[None]]) -> None:
        began = time.monotonic()
        grace = self._settings.grace_period
        if self._keeper is None:  # a session so short that it has not been noticed yet, or whose collector died with it
            await self._notice(await asyncio.to_thread(look, self._root), last=True)
        await self._until_ray_is_gone(began + grace - _KEPT_FOR_FLUSH)
        await stop_listening()
        await _cancelled(self._tasks)
        deadline = began + grace - _KEPT_FOR_EXIT
        if self.hurry.is_set():
            deadline = min(deadline, time.monotonic() + _HURRY)
        timer = asyncio.create_task(self._give_up_at(deadline - _KEPT_FOR_SEAL))
        try:
            async with asyncio.timeout(max(_KEPT_FOR_SEAL, deadline - time.monotonic())):
                await self._close_all()
        except TimeoutError:
            log.error("the time is up")  # noqa: TRY400
        timer.cancel()
        await self._shared.uploader.stop()
        await self._shared.spool.shut()
        await self._shared.store.close()
        left = self._shared.spool.segments()
        log.info(
            "the collector ends",
            extra={"segments_left": len(left), "bytes_left": sum(each.size for each in left)},
        )

    async def _until_ray_is_gone(self, latest: float) -> None:
        """Ray's last events come while it ends, and its dashboard answers only as long as it is there."""
        keeper = self._keeper
        if keeper is None:
            self._last_answers_taken = True
            return
        log.info("the end has come: events are taken until Ray is gone", extra={"session": keeper.ref.session})
        questions = asyncio.create_task(self._ask_a_last_time(keeper))
        while time.monotonic() < latest and not self.hurry.is_set():
            if await keeper.raylet() is Raylet.GONE:
                break
            await pause(self.hurry, _LOOK_FOR_END)
        await unless(self.hurry, questions)

    async def _ask_a_last_time(self, keeper: SessionKeeper) -> None:
        try:
            await keeper.ask_a_last_time()
        finally:
            self._last_answers_taken = True

    async def _give_up_at(self, when: float) -> None:
        await pause(self.hurry, when - time.monotonic())
        await asyncio.sleep(max(0.0, min(when, time.monotonic() + _HURRY) - time.monotonic()))
        self._give_up.set()

    async def _close_all(self) -> None:
        shared = self._shared
        shared.uploader.hurry.set()
        keepers = [*self._closing.values()]
        if self._keeper:
            keepers.append(asyncio.create_task(self._keeper.close("the collector was told to end", self._give_up)))
        await shared.spool.rotate()
        await self._name_strays()
        kept = {self._keeper.ref.session} if self._keeper else set()
        for session in shared.spool.waiting_for_node() - kept:
            await shared.spool.name_node(session, self._nameless)
        await unless(self._give_up, shared.uploader.drain())
        await unless(self._give_up, self._seal_what_was_left())
        for failure in await asyncio.gather(*keepers, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.error("a session could not be closed", exc_info=failure)

    def _go(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(keep_going(name, work, self._shared.metrics)))


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
