"""The collector of one node. It receives events all the time, and collects one session after another.

If Ray restarts in the same pod, the old session is closed while the new one starts. SIGTERM reaches Ray and the
collector at the same time. So the collector accepts events until Ray has exited.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette

from rayhistory.collector.app import make_app
from rayhistory.collector.held_directory import HeldDirectory
from rayhistory.collector.ingest.endpoint import IngestEndpoint
from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.session.node_id import NodeIdFinder
from rayhistory.collector.session.orphaned_sessions import OrphanedSessionShipper, has_unshipped_logs
from rayhistory.collector.session.ray_discovery import (
    LatestSession,
    RayletState,
    find_latest_session,
    find_running_session,
    has_directory,
    may_run_here,
    raylet_state,
    session_state,
)
from rayhistory.collector.session.session_record import build_node_seal, write_node_seal
from rayhistory.collector.session_collector import CollectorContext, SessionCollector
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.spool.spool_factory import make_quarantine, make_spool
from rayhistory.collector.spool.upload import Uploader
from rayhistory.collector.supervise import restart_on_error, run_unless, wait_for_event
from rayhistory.collector.telemetry import Telemetry
from rayhistory.concurrency import cancel_all
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 1.0
_FIRST_WATCH_TIMEOUT_S = 5.0  # Ray's directory may be on a disk that hangs
_RAY_EXIT_POLL_INTERVAL_S = 0.25
_FLUSH_RESERVE_S = 10.0
"""Seconds of the grace period that are reserved for the last uploads."""
_SEAL_RESERVE_S = 2.0
_EXIT_RESERVE_S = 1.0
_FAST_SHUTDOWN_S = 5.0
_NO_DIRECTORY_AFTER_S = 5.0  # a session with events and still no directory runs where its files are not visible


class Collector:
    """Collects all sessions of one node; `cluster` is the configured name or one made from the host name."""

    def __init__(self, settings: Settings, cluster: str, store: Store) -> None:
        self.stop = asyncio.Event()
        self.stop_signal = "SIGTERM"
        """Name of the signal that set `stop`."""
        self.fast_shutdown = asyncio.Event()
        """An event that a second signal sets: then shutdown does not wait for Ray, and gives up uploads soon."""
        self._settings = settings
        self._cluster = cluster
        self._root = Path(settings.ray_tmp_root)
        telemetry = Telemetry()
        layout = Layout(settings.storage_root_dir, settings.storage_layout)
        compressed = settings.event_compression_enabled and not layout.writes_v1_6
        spool = make_spool(settings, cluster, compressed=compressed)
        quarantine = make_quarantine(settings, spool, telemetry)
        uploader = Uploader(
            spool=spool,
            store=store,
            layout=layout,
            ref_of=self._ref,
            quarantine=quarantine,
            telemetry=telemetry,
            compressed=compressed,
        )
        ingest = IngestEndpoint(
            spool,
            quarantine,
            telemetry,
            max_body_bytes=min(settings.events_max_body, spool.max_body_bytes),
            allow_remote=settings.events_allow_remote,
            token=settings.events_token,
            admits=self._admits,
        )
        node_ids, starts = NodeIdFinder(settings, ingest.reported_node), SeriesStarts(spool.directory)
        self._context = CollectorContext(settings, store, layout, spool, uploader, ingest, telemetry, node_ids, starts)
        self._orphans = OrphanedSessionShipper(
            settings,
            store,
            layout,
            telemetry,
            spool=spool.directory,
            starts=starts,
            ref_of=self._ref,
            active_sessions=self._active_sessions,
            events_of=lambda session: EventStreams(spool, session),
        )
        self._current: SessionCollector | None = None
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._give_up = asyncio.Event()
        self._watched = asyncio.Event()
        """An event that is set after the first search for a session."""
        self._last_responses_stored = False
        self._tasks: list[asyncio.Task[None]] = []
        self._add_gauges(spool, telemetry)

    def _add_gauges(self, spool: Spool, telemetry: Telemetry) -> None:
        telemetry.add_gauge("log_lag_seconds", "Age of the oldest log bytes that are not uploaded", self._log_lag)
        telemetry.add_gauge("spool_bytes", "Bytes in the spool", lambda: spool.bytes)
        telemetry.add_gauge("segments_waiting", "Closed segments that are not uploaded", lambda: len(spool.closed))
        telemetry.add_gauge("spool_age_seconds", "Age of the oldest segment in the spool", spool.oldest_age)
        telemetry.add_gauge(
            "last_dashboard_responses_stored",
            "1 after the last poll of the dashboard, following SIGTERM: Ray may be stopped now",
            lambda: self._last_responses_stored,
        )

    @property
    def spool_path(self) -> Path:
        return self._context.spool.directory.path

    @property
    def app(self) -> Starlette:
        ingest = self._context.ingest if self._settings.enable_event_collector else None
        return make_app(ingest, self._context.telemetry, self._not_ready_reason)

    def _not_ready_reason(self) -> str | None:
        return None if self._context.spool.writable else f"cannot write to the spool {self.spool_path}"

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
        """Start the background tasks; raise UsageError if another collector uses the same spool."""
        try:
            await self._context.spool.open()
        except OSError as error:
            log.error("cannot open spool, retrying", extra={"reason": str(error)})  # noqa: TRY400
        self._run_in_background("upload", self._context.uploader.run)
        self._run_in_background("watch", self._watch)
        # Events of a session that runs now must be admitted, even if Ray starts another one at once.
        await wait_for_event(self._watched, _FIRST_WATCH_TIMEOUT_S)
        self._run_in_background("seal", self._seal_periodically)
        if self._settings.enable_log_collector:
            self._run_in_background("orphaned_sessions", self._orphans.run)

    async def _watch(self) -> None:
        while True:
            try:
                await self._update_session(await asyncio.to_thread(self._find_session))
            finally:
                self._watched.set()
            await self._end_if_ray_is_gone()
            # Open segments of collected sessions are in packs; those of all others must be uploaded soon.
            await self._context.spool.rotate_due(self._settings.log_interval, exclude=self._active_sessions())
            await self._assign_nodes()
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _seal_periodically(self) -> None:
        """Seal ended sessions in a separate task, because `_watch` must not wait for the store."""
        while True:
            await self._seal_ended_sessions()
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _update_session(self, latest: LatestSession | None, *, at_shutdown: bool = False) -> None:
        """Switch to the latest session if it must be collected, and set the directory and node of the current one."""
        current = self._current
        if latest and (current is None or current.ref.session != latest.session):
            state = await asyncio.to_thread(raylet_state, latest.directory.path)
            may_leave = await self._may_leave(current, state)
            if may_leave and await self._must_collect(latest, state, at_shutdown=at_shutdown):
                if self._current is current:  # `_watch` and `shut_down` may run this concurrently
                    self._switch_session(latest.session, latest.directory, is_running=state is not RayletState.GONE)
            else:
                self._follow_events()
        elif latest and current and current.directory is None:
            current.attach(latest.directory)
        else:
            self._follow_events()
        if self._current:
            session = self._current.ref.session
            found = latest.node if latest and latest.session == session else await self._current.find_node_id()
            if node := self._context.node_ids.current(session, found, self._current.node):
                await self._current.set_node(node)

    def _follow_events(self) -> None:
        """Switch to a session that is known only from its events, unless the current one has a directory."""
        current, session = self._current, self._context.ingest.latest_session(_NO_DIRECTORY_AFTER_S)
        may_switch = current is None or (current.directory is None and current.ref.session != session)
        if may_switch and session and session not in self._closing and not has_directory(self._root, session):
            self._switch_session(session, None)

    def _find_session(self) -> LatestSession | None:
        """Return the running session that an earlier collector process collected, else the latest session.

        Jobs can change the link `session_latest`. They must not be able to redirect the collector while the raylet of
        its session is alive.
        """
        found = find_running_session(self._root, self._context.spool.open_sessions()) if self._current is None else None
        return found or find_latest_session(self._root)

    async def _must_collect(self, latest: LatestSession, state: RayletState, *, at_shutdown: bool) -> bool:
        """Return whether to collect a session: if it is running or, at shutdown, if its data is not complete.

        `session_latest` may point to a session that ended long ago.
        """
        if (closing := self._closing.get(latest.session)) and not closing.done():
            return False
        if state is not RayletState.GONE:
            return True
        if closing or not at_shutdown:
            return False
        has_events = self._context.ingest.has_events_of(latest.session)
        return has_events or await asyncio.to_thread(self._has_unfinished_logs, latest)

    async def _may_leave(self, current: SessionCollector | None, next_state: RayletState) -> bool:
        """Return whether the collector may switch to another session.

        It may not while the raylet of the current session is alive.
        """
        if current is None or current.directory is None:
            return True
        state = await current.raylet_state()
        return state is RayletState.GONE or (state is RayletState.ACTIVE and next_state is not RayletState.GONE)

    async def _admits(self, session: str) -> bool:
        """Return whether to accept events of a session. Others are quarantined. May raise SpoolError.

        Without this check, any client could add events to any session of the cluster. While the current raylet is
        alive, only its session and sessions that were collected here before are accepted.
        """
        if session in self._active_sessions():
            return True
        await self._context.spool.require_open()  # only the spool tells what was collected before
        if self._context.spool.has_seen(session):
            return True
        if not await self._may_leave(self._current, RayletState.ALIVE):
            return False
        return await asyncio.to_thread(may_run_here, self._root, session)

    async def _end_if_ray_is_gone(self) -> None:
        """End the current session if its Ray has exited. If Ray resumes the session, it is collected again."""
        current = self._current
        if current and await current.is_ray_gone() and self._current is current and not self.stop.is_set():
            self._close_session(current, "Ray has exited")
            self._current = None

    def _has_unfinished_logs(self, latest: LatestSession) -> bool:
        """Return whether an earlier collector process collected the session and did not upload all its logs."""
        spool = self._context.spool
        return spool.has_seen(latest.session) and has_unshipped_logs(spool.directory, latest.directory)

    def _log_lag(self) -> float:
        return self._current.log_lag() if self._current else 0.0

    def _active_sessions(self) -> dict[str, str | None]:
        """Return the sessions that are being collected or closed, with the node where known."""
        sessions: dict[str, str | None] = {name: None for name, task in self._closing.items() if not task.done()}
        if self._current:
            sessions[self._current.ref.session] = self._current.node
        return sessions

    def _switch_session(self, session: str, directory: HeldDirectory | None, *, is_running: bool = False) -> None:
        self._orphans.release(session)
        if self._current:
            self._close_session(self._current, "Ray started a new session")
        self._closing.pop(session, None)
        self._current = SessionCollector(self._context, self._ref(session), directory, is_running=is_running)
        self._current.start()

    def _close_session(self, session: SessionCollector, reason: str) -> None:
        close = restart_on_error("close", lambda: session.close(reason, self._give_up), self._context.telemetry)
        self._closing[session.ref.session] = asyncio.create_task(close)

    async def _assign_nodes(self) -> None:
        """Set the node of segments whose session is not being collected, such as segments of an earlier process."""
        current = self._current.ref.session if self._current else None
        spool, node_ids = self._context.spool, self._context.node_ids
        for session in spool.sessions_without_node() - {current}:
            if node := await node_ids.for_unassigned(session, spool.oldest_age(session)):
                await spool.assign_node(session, node)

    async def _seal_ended_sessions(self) -> None:
        """Seal ended sessions that had late events, or events of an earlier collector process, in the spool."""
        spool = self._context.spool
        for session, node in list(spool.to_seal.items()):
            if session in self._active_sessions():
                del spool.to_seal[session]  # its session collector seals it
            elif not spool.segments(session) and await self._has_ended(session):
                del spool.to_seal[session]  # before the await: events that are stored meanwhile add it again
                node_id = spool.node_of(session) or node or self._context.node_ids.placeholder
                seal = build_node_seal(node_id, spool.counts(session), [])
                try:
                    await write_node_seal(
                        self._context.store, self._context.layout, self._ref(session), seal, self._context.telemetry
                    )
                except asyncio.CancelledError:
                    spool.to_seal.setdefault(session, node)
                    raise
                await spool.mark_sealed(session)
                log.info("all events of an ended session are uploaded", extra={"session": session})

    async def _has_ended(self, session: str) -> bool:
        return await asyncio.to_thread(session_state, self._root, session) is RayletState.GONE

    # Shutdown

    async def shut_down(self, stop_listening: Callable[[], Awaitable[None]]) -> None:
        """Accept events until Ray has exited, then upload and seal everything within the grace period."""
        began = time.monotonic()
        grace = self._settings.grace_period
        if self._current is None:  # a very short session, or one whose earlier collector was killed
            await self._update_session(await asyncio.to_thread(self._find_session), at_shutdown=True)
        await self._wait_for_ray_to_exit(began + grace - _FLUSH_RESERVE_S)
        await stop_listening()
        await cancel_all(self._tasks)
        deadline = began + grace - _EXIT_RESERVE_S
        if self.fast_shutdown.is_set():
            deadline = min(deadline, time.monotonic() + _FAST_SHUTDOWN_S)
        timer = asyncio.create_task(self._give_up_at(deadline - _SEAL_RESERVE_S))
        try:
            async with asyncio.timeout(max(_SEAL_RESERVE_S, deadline - time.monotonic())):
                await self._close_all()
        except TimeoutError:
            log.error("grace period expired, shutting down with data left in the spool; the next start uploads it")  # noqa: TRY400
        timer.cancel()
        await self._context.uploader.stop()
        await self._context.spool.close()
        await self._context.store.close()
        left = self._context.spool.segments()
        log.info(
            "collector stopped",
            extra={"segments_left": len(left), "bytes_left": sum(each.size for each in left)},
        )

    async def _wait_for_ray_to_exit(self, deadline: float) -> None:
        """Poll the dashboard a last time, then wait for Ray, which sends its last events while it exits."""
        current = self._current
        if current is None:
            self._last_responses_stored = True
            return
        log.info(
            "%s received, accepting events until Ray exits", self.stop_signal, extra={"session": current.ref.session}
        )
        last_poll = asyncio.create_task(self._poll_dashboard_last(current))
        while time.monotonic() < deadline and not self.fast_shutdown.is_set():
            if await current.raylet_state() is RayletState.GONE:
                break
            await wait_for_event(self.fast_shutdown, _RAY_EXIT_POLL_INTERVAL_S)
        await run_unless(self.fast_shutdown, last_poll)

    async def _poll_dashboard_last(self, current: SessionCollector) -> None:
        try:
            await current.poll_final()
        finally:
            self._last_responses_stored = True

    async def _give_up_at(self, when: float) -> None:
        await wait_for_event(self.fast_shutdown, when - time.monotonic())
        await asyncio.sleep(max(0.0, min(when, time.monotonic() + _FAST_SHUTDOWN_S) - time.monotonic()))
        self._give_up.set()

    async def _close_all(self) -> None:
        context = self._context
        context.uploader.shutting_down.set()
        closing = [*self._closing.values()]
        if self._current:
            reason = f"collector received {self.stop_signal}"
            closing.append(asyncio.create_task(self._current.close(reason, self._give_up)))
        await context.spool.rotate()
        await self._assign_nodes()
        current = {self._current.ref.session} if self._current else set()
        for session in context.spool.sessions_without_node() - current:
            await context.spool.assign_node(session, self._context.node_ids.placeholder)
        await run_unless(self._give_up, context.uploader.drain())
        await run_unless(self._give_up, self._seal_ended_sessions())
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.error("unexpected error while closing a session, some of its data may be missing", exc_info=failure)

    def _run_in_background(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(restart_on_error(name, work, self._context.telemetry)))
