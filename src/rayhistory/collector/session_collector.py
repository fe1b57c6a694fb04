"""Collect all data of one session on this node, from its start to its seal."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rayhistory.collector.held_directory import HeldDirectory
from rayhistory.collector.ingest.endpoint import IngestEndpoint
from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.logs.shipper import Shipper, make_shipper
from rayhistory.collector.metrics.dashboard_files import DashboardFiles
from rayhistory.collector.metrics.sampler import MetricsSampler
from rayhistory.collector.session.export_file_reader import ExportFileReader
from rayhistory.collector.session.node_id import NodeIdFinder, find_node_id
from rayhistory.collector.session.orphaned_sessions import mark_shipped
from rayhistory.collector.session.ray_discovery import (
    RayletState,
    find_dashboard_address,
    gcs_answers,
    last_log_write_ms,
    raylet_state,
)
from rayhistory.collector.session.session_record import SessionRecord, build_node_seal, now_ms, write_node_seal
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.spool.upload import Uploader
from rayhistory.collector.supervise import restart_on_error, run_unless
from rayhistory.collector.telemetry import Telemetry
from rayhistory.concurrency import cancel_all
from rayhistory.masking import mask_env_vars_in_lines
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

if TYPE_CHECKING:
    from rayhistory.collector.dashboard.poller import DashboardPoller

log = logging.getLogger(__name__)

_GONE_AFTER_S = 10.0  # a container may restart Ray in the same session


@dataclasses.dataclass(frozen=True)
class CollectorContext:
    """Services that all sessions of the process share."""

    settings: Settings
    store: Store
    layout: Layout
    spool: Spool
    uploader: Uploader
    ingest: IngestEndpoint
    telemetry: Telemetry
    node_ids: NodeIdFinder
    starts: SeriesStarts


class SessionCollector:
    """Collects one session.

    `directory` is None while the session is known only from its events. `is_running` is True if its raylet is alive.
    """

    def __init__(
        self, context: CollectorContext, ref: SessionRef, directory: HeldDirectory | None, *, is_running: bool = False
    ) -> None:
        self.ref = ref
        self.directory = directory
        self.node: str | None = None
        self._was_alive = is_running
        self._last_life_ms: int | None = None
        self._gone_since: tuple[float, int] | None = None
        """Time when Ray exited: by the monotonic clock, and in milliseconds since 1970."""
        self._context = context
        self._node_found = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._shipper: Shipper | None = None
        self._shipping: asyncio.Task[None] | None = None
        self._node_fallback: asyncio.Task[None] | None = None
        self._record: SessionRecord | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._poller: DashboardPoller | None = None
        self._exports: ExportFileReader | None = None
        self._sampler: MetricsSampler | None = None

    @property
    def _node_or_placeholder(self) -> str:
        return self.node or self._context.node_ids.placeholder

    def start(self) -> None:
        place = str(self.directory.place) if self.directory else ""
        log.info("found a session, collecting its data", extra={"session": self.ref.session, "directory": place})
        context = self._context
        settings = context.settings
        context.spool.reopen(self.ref.session)
        self._node_fallback = self._start_task("node_id", self._assign_fallback_node)
        if settings.enable_log_collector or settings.log_layout != "plain":
            self._shipper = make_shipper(
                None,
                settings,
                context.store,
                context.telemetry,
                starts=context.starts,
                packs_prefix=lambda: context.layout.node_packs_prefix(self.ref, self._node_or_placeholder),
                key_of=lambda name: context.layout.log_key(self.ref, self._node_or_placeholder, name),
                events=EventStreams(context.spool, self.ref.session),
            )
            self._shipping = self._start_task("logs", self._ship)
        if settings.enable_log_collector and settings.role == "Head":
            self._record = SessionRecord(
                self.ref,
                self.directory.path if self.directory else None,
                context.store,
                context.layout,
                context.telemetry,
                spool=context.spool,
                is_running=self._was_alive,
            )
            record = self._record
            self._heartbeat = self._start_task("record", lambda: record.run(settings.heartbeat_interval))
            self._poller = self._make_poller(record)
            self._tasks.append(self._start_task("dashboard", self._poller.run))
        if self.directory:
            self.attach(self.directory)

    def attach(self, directory: HeldDirectory) -> None:
        """Start to collect from the session's directory. It may be found later than the first events."""
        self.directory = directory
        if self._context.settings.enable_log_collector:
            context = self._context
            if self._shipper:
                self._shipper.follow(directory.path / "logs")
            self._exports = ExportFileReader(
                self.ref.session,
                directory.path,
                context.spool.directory.folder("exports"),
                context.spool,
                context.telemetry,
            )
            self._tasks.append(self._start_task("exports", self._exports.run))
            if context.settings.metrics_interval:
                self._sampler = self._make_sampler(directory.path)
                self._tasks.append(self._start_task("metrics", self._sampler.run))
                if context.settings.role == "Head":
                    key = context.layout.grafana_dashboards_key(self.ref)
                    dashboards = DashboardFiles(directory.path, context.store, key, context.telemetry)
                    self._tasks.append(self._start_task("dashboards", dashboards.run))

    def _make_sampler(self, directory: Path) -> MetricsSampler:
        context = self._context
        return MetricsSampler(
            directory,
            context.store,
            context.telemetry,
            node=lambda: self.node,
            key_of=lambda node, first_ms: context.layout.metrics_key(self.ref, node, first_ms),
            interval=context.settings.metrics_interval,
            skip=context.settings.metrics_skip,
            head=context.settings.role == "Head",
        )

    async def set_node(self, node: str) -> None:
        if node == self.node and node == self._context.spool.node_of(self.ref.session):
            return
        log.info(
            "assigned the session to a node id",
            extra={"session": self.ref.session, "node": node, "previous_node": self.node or ""},
        )
        await self._context.spool.assign_node(self.ref.session, node)
        self.node = node
        self._node_found.set()
        if self._record and node != self._context.node_ids.placeholder:
            self._record.update(node=node)

    async def find_node_id(self) -> str | None:
        """Find the node's id in the session's files."""
        return await asyncio.to_thread(find_node_id, self.directory.path) if self.directory else None

    def log_lag(self) -> float:
        return self._shipper.lag() if self._shipper else 0.0

    async def poll_final(self) -> None:
        """Poll the dashboard a last time, while Ray is still running."""
        if self._poller:
            await cancel_all(self._tasks)
            await self._poller.poll_final()

    # Ray's life

    async def raylet_state(self) -> RayletState:
        """Probe the raylet, and remember when it was last alive."""
        if self.directory is None:
            return RayletState.GONE
        state = await asyncio.to_thread(raylet_state, self.directory.path)
        if state is RayletState.ALIVE:
            self._was_alive, self._last_life_ms = True, now_ms()
        return state

    async def is_ray_gone(self) -> bool:
        """Return whether Ray has exited: its raylet (and GCS, on the head) was alive and has been gone for a while."""
        if await self.raylet_state() is not RayletState.GONE or await self._gcs_answers():
            self._gone_since = None
            return False
        if self._gone_since is None:
            self._gone_since = time.monotonic(), now_ms()
        return self._was_alive and time.monotonic() - self._gone_since[0] >= _GONE_AFTER_S

    async def _gcs_answers(self) -> bool:
        return self.directory is not None and await asyncio.to_thread(gcs_answers, self.directory.path)

    async def _end_ms(self) -> int:
        """Return the time when Ray was last alive, or the current time while it runs."""
        now = now_ms()
        if self.directory is None or await self.raylet_state() is not RayletState.GONE:
            return now
        written_ms = await asyncio.to_thread(last_log_write_ms, self.directory.path, now)
        segment = self._context.spool.open_segment(self.ref.session)
        received_ms = segment.last_append_ms if segment else 0
        last = max(self._last_life_ms or 0, written_ms or 0, received_ms) or now
        return min(last, self._gone_since[1]) if self._gone_since else last

    async def close(self, reason: str, give_up: asyncio.Event) -> None:
        """Upload the session's data within the available time, and seal the session."""
        context, session = self._context, self.ref.session
        ended_ms = await self._end_ms()
        await cancel_all([task for task in (*self._tasks, self._shipping, self._node_fallback) if task])
        if self._poller:
            await self._poller.close()
        if self._exports:
            await run_unless(give_up, self._exports.read_new_lines())
        await context.spool.rotate(session)
        if self.node is None:
            await self.set_node(context.node_ids.without_files(session))
        finish = [context.uploader.drain(session), *(part.finish() for part in (self._shipper, self._sampler) if part)]
        await run_unless(give_up, asyncio.gather(*finish))
        if self._shipper:  # once more: all events are stored as objects now, so their streams are forgotten
            await run_unless(give_up, self._shipper.finish())
        unshipped = await self._unshipped()
        has_all_logs = not any(name.startswith("logs/") for name in unshipped)
        if context.settings.enable_log_collector and has_all_logs and self.directory:
            await asyncio.to_thread(mark_shipped, context.spool.directory, self.directory, self._node_or_placeholder)
        telemetry = context.telemetry
        await context.spool.record_totals(quarantined=telemetry.quarantined_count, lost=telemetry.lost_count)
        seal = build_node_seal(self._node_or_placeholder, context.spool.counts(session), unshipped)
        await write_node_seal(context.store, context.layout, self.ref, seal, telemetry)
        await context.spool.mark_sealed(session)
        if self._record:
            if self._heartbeat:
                await cancel_all([self._heartbeat])
            await self._record.end(reason, ended_ms)
        log.info(
            "collector finished recording the session",
            extra={"session": session, "reason": reason, "not_uploaded": unshipped},
        )

    async def _unshipped(self) -> list[str]:
        segments = [segment.path.name for segment in self._context.spool.segments(self.ref.session)]
        logs = await asyncio.to_thread(self._shipper.unshipped) if self._shipper else []
        metrics = self._sampler.unshipped() if self._sampler else []
        return [*segments, *(f"logs/{name}" for name in logs), *metrics]

    async def _assign_fallback_node(self) -> None:
        node = await self._context.node_ids.fallback(
            self.ref.session, self._node_found, lambda: self.directory is not None
        )
        if node:
            await self.set_node(node)

    async def _ship(self) -> None:
        await self._node_found.wait()
        if self._shipper:
            await self._shipper.run()

    def _make_poller(self, record: SessionRecord) -> "DashboardPoller":
        # Imported here, because an HTTP client costs memory, and only the head needs one.
        from rayhistory.collector.dashboard.poller import DashboardPoller  # noqa: PLC0415
        from rayhistory.collector.dashboard.schedule import PollSchedule  # noqa: PLC0415
        from rayhistory.collector.dashboard_client import DashboardClient  # noqa: PLC0415

        context = self._context
        settings = context.settings
        return DashboardPoller(
            session=self.ref.session,
            dashboard=DashboardClient(settings, self.ref.session, self._logged_dashboard_address),
            schedule=PollSchedule(time.monotonic(), settings.poll_interval, settings.additional_endpoints),
            spool=context.spool,
            put_endpoint=self._put_endpoint,
            record=record,
            telemetry=context.telemetry,
            drivers=context.ingest.drivers,
        )

    async def _put_endpoint(self, uri: str, body: bytes) -> None:
        context = self._context
        stored = mask_env_vars_in_lines(body) if context.settings.mask_env_vars else body
        await context.store.put(context.layout.endpoint_key(self.ref, uri), stored)

    def _logged_dashboard_address(self) -> str | None:
        return find_dashboard_address(self.directory.path) if self.directory else None

    def _start_task(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(restart_on_error(name, work, self._context.telemetry))
