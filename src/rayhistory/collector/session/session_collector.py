"""Collect everything of one session on this node, from its start to its seal."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rayhistory.collector.ingest.endpoint import IngestEndpoint
from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.shipper import Shipper, make_shipper
from rayhistory.collector.metrics.sampler import MetricsSampler
from rayhistory.collector.session.export_file_reader import ExportFileReader
from rayhistory.collector.session.node_id import NodeIdFinder
from rayhistory.collector.session.orphaned_sessions import mark_shipped
from rayhistory.collector.session.ray_discovery import RayletState, find_dashboard_address, raylet_state
from rayhistory.collector.session.session_record import SessionRecord, build_node_seal, write_node_seal
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.spool.upload import Uploader
from rayhistory.collector.supervise import restart_on_error, run_unless
from rayhistory.collector.telemetry import Telemetry
from rayhistory.masking import mask_env_vars_in_lines
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

if TYPE_CHECKING:
    from rayhistory.collector.dashboard.poller import DashboardPoller

log = logging.getLogger(__name__)


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


class SessionCollector:
    """`directory` is None while the session is known only from its events."""

    def __init__(self, context: CollectorContext, ref: SessionRef, directory: Path | None) -> None:
        self.ref = ref
        self.directory = directory
        self.node: str | None = None
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
        log.info(
            "session found, collecting", extra={"session": self.ref.session, "directory": str(self.directory or "")}
        )
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
                packs_prefix=lambda: context.layout.node_packs_prefix(self.ref, self._node_or_placeholder),
                key_of=lambda name: context.layout.log_key(self.ref, self._node_or_placeholder, name),
                events=EventStreams(context.spool, self.ref.session),
            )
            self._shipping = self._start_task("logs", self._ship)
        if settings.enable_log_collector and settings.role == "Head":
            self._record = SessionRecord(
                self.ref,
                self.directory,
                context.store,
                context.layout,
                context.telemetry,
                heartbeat=settings.heartbeat_interval,
            )
            self._heartbeat = self._start_task("record", self._record.run)
            self._poller = self._make_poller(self._record)
            self._tasks.append(self._start_task("dashboard", self._poller.run))
        if self.directory:
            self.attach(self.directory)

    def attach(self, directory: Path) -> None:
        """Start to collect from the session's directory, which may be found after its events."""
        self.directory = directory
        if self._context.settings.enable_log_collector:
            context = self._context
            if self._shipper:
                self._shipper.follow(directory / "logs")
            self._exports = ExportFileReader(
                self.ref.session,
                directory / "logs" / "export_events",
                context.spool.directory / "exports",
                context.spool,
                context.telemetry,
            )
            self._tasks.append(self._start_task("exports", self._exports.run))
            if context.settings.metrics_interval:
                self._sampler = self._make_sampler(directory)
                self._tasks.append(self._start_task("metrics", self._sampler.run))

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
        log.info("node id found", extra={"session": self.ref.session, "node": node, "before": self.node or ""})
        await self._context.spool.assign_node(self.ref.session, node)
        self.node = node
        self._node_found.set()
        if self._record and node != self._context.node_ids.placeholder:
            self._record.update(node=node)

    def log_lag(self) -> float:
        return self._shipper.lag() if self._shipper else 0.0

    async def poll_final(self) -> None:
        """Poll the dashboard a last time, while Ray is still running."""
        if self._poller:
            await _cancel(self._tasks)
            await self._poller.poll_final()

    async def raylet_state(self) -> RayletState:
        return await asyncio.to_thread(raylet_state, self.directory) if self.directory else RayletState.GONE

    async def close(self, reason: str, give_up: asyncio.Event) -> None:
        """Store everything of the session, or as much as there is time for, and seal it."""
        context, session = self._context, self.ref.session
        await _cancel([task for task in (*self._tasks, self._shipping, self._node_fallback) if task])
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
            logs = self.directory / "logs"
            await asyncio.to_thread(mark_shipped, context.spool.directory, session, self._node_or_placeholder, logs)
        telemetry = context.telemetry
        await context.spool.record_totals(quarantined=telemetry.quarantined_count, lost=telemetry.lost_count)
        seal = build_node_seal(self._node_or_placeholder, context.spool.counts(session), unshipped)
        await write_node_seal(context.store, context.layout, self.ref, seal, telemetry)
        await context.spool.mark_sealed(session)
        if self._record:
            if self._heartbeat:
                await _cancel([self._heartbeat])
            await self._record.end(reason)
        log.info("session closed", extra={"session": session, "reason": reason, "unshipped": unshipped})

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
        from rayhistory.collector.dashboard.dashboard_client import DashboardClient  # noqa: PLC0415
        from rayhistory.collector.dashboard.poller import DashboardPoller  # noqa: PLC0415
        from rayhistory.collector.dashboard.schedule import PollSchedule  # noqa: PLC0415

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
        )

    async def _put_endpoint(self, uri: str, body: bytes) -> None:
        context = self._context
        stored = mask_env_vars_in_lines(body) if context.settings.mask_env_vars else body
        await context.store.put(context.layout.endpoint_key(self.ref, uri), stored)

    def _logged_dashboard_address(self) -> str | None:
        return find_dashboard_address(self.directory) if self.directory else None

    def _start_task(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(restart_on_error(name, work, self._context.telemetry))


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
