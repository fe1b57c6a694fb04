"""Everything that is kept of one session on this node, from its first second to its seal."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rayhistory.collector.discovery import Raylet, find_dashboard, nameless, raylet
from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.exports import Exports
from rayhistory.collector.ingest import Ingest
from rayhistory.collector.leftovers import mark_done
from rayhistory.collector.logs import Shipper, make_shipper
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.record import SessionRecord, node_seal, seal_node
from rayhistory.collector.samples import Sampler
from rayhistory.collector.spool import Spool
from rayhistory.collector.supervise import keep_going, pause, unless
from rayhistory.collector.upload import Uploader
from rayhistory.layout import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import Store

if TYPE_CHECKING:
    from rayhistory.collector.snapshots import Snapshots

log = logging.getLogger(__name__)

NOBODY_NAMES = 120.0  # a node that is not named for so long will not be
_NOBODY_TELLS = 5.0  # without a directory, only events can tell which node it is


@dataclasses.dataclass(frozen=True)
class Shared:
    """What all sessions of the process share."""

    settings: Settings
    store: Store
    layout: Layout
    spool: Spool
    uploader: Uploader
    ingest: Ingest
    metrics: Metrics


class SessionKeeper:
    """`directory` is None while only events tell of the session."""

    def __init__(self, shared: Shared, ref: SessionRef, directory: Path | None) -> None:
        self.ref = ref
        self.directory = directory
        self.node: str | None = None
        self._shared = shared
        self._nameless = nameless(Path(shared.settings.ray_tmp_root))
        self._node_known = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._logs: Shipper | None = None
        self._shipping: asyncio.Task[None] | None = None
        self._naming: asyncio.Task[None] | None = None
        self._record: SessionRecord | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._snapshots: Snapshots | None = None
        self._exports: Exports | None = None
        self._samples: Sampler | None = None

    def start(self) -> None:
        log.info("a session is kept", extra={"session": self.ref.session, "directory": str(self.directory or "")})
        shared = self._shared
        settings = shared.settings
        shared.spool.reopen(self.ref.session)
        self._naming = self._go("name", self._name_at_last)
        if settings.enable_log_collector or settings.log_layout != "plain":
            self._logs = make_shipper(
                None,
                settings,
                shared.store,
                shared.metrics,
                packs_at=lambda: shared.layout.node_packs_prefix(self.ref, self.node or self._nameless),
                key_of=lambda name: shared.layout.log_key(self.ref, self.node or self._nameless, name),
                events=EventStreams(shared.spool, self.ref.session),
            )
            self._shipping = self._go("logs", self._ship)
        if settings.enable_log_collector and settings.role == "Head":
            self._record = SessionRecord(
                self.ref,
                self.directory,
                shared.store,
                shared.layout,
                shared.metrics,
                heartbeat=settings.heartbeat_interval,
            )
            self._heartbeat = self._go("record", self._record.run)
            self._snapshots = self._ask_dashboard(self._record)
            self._tasks.append(self._go("snapshots", self._snapshots.run))
        if self.directory:
            self.attach(self.directory)

    def attach(self, directory: Path) -> None:
        """The session's directory has been found."""
        self.directory = directory
        if self._shared.settings.enable_log_collector:
            shared = self._shared
            if self._logs:
                self._logs.follow(directory / "logs")
            self._exports = Exports(
                self.ref.session,
                directory / "logs" / "export_events",
                shared.spool.directory / "exports",
                shared.spool,
                shared.metrics,
            )
            self._tasks.append(self._go("exports", self._exports.run))
            if shared.settings.metrics_interval:
                self._samples = self._sample_metrics(directory)
                self._tasks.append(self._go("metrics", self._samples.run))

    def _sample_metrics(self, directory: Path) -> Sampler:
        shared = self._shared
        return Sampler(
            directory,
            shared.store,
            shared.metrics,
            node=lambda: self.node,
            key_of=lambda node, first_ms: shared.layout.metrics_key(self.ref, node, first_ms),
            interval=shared.settings.metrics_interval,
            skip=shared.settings.metrics_skip,
            head=shared.settings.role == "Head",
        )

    async def set_node(self, node: str) -> None:
        if node == self.node and node == self._shared.spool.node_of(self.ref.session):
            return
        log.info("the node is known", extra={"session": self.ref.session, "node": node, "before": self.node or ""})
        await self._shared.spool.name_node(self.ref.session, node)
        self.node = node
        self._node_known.set()
        if self._record and node != self._nameless:
            self._record.learn(node=node)

    def log_lag(self) -> float:
        return self._logs.lag() if self._logs else 0.0

    async def ask_a_last_time(self) -> None:
        if self._snapshots:
            await _cancelled(self._tasks)
            await self._snapshots.final()

    async def raylet(self) -> Raylet:
        return await asyncio.to_thread(raylet, self.directory) if self.directory else Raylet.GONE

    async def close(self, reason: str, give_up: asyncio.Event) -> None:
        """Brings everything of the session to the store, or as much as there is time for, and seals it."""
        shared, session = self._shared, self.ref.session
        await _cancelled([task for task in (*self._tasks, self._shipping, self._naming) if task])
        if self._snapshots:
            await self._snapshots.close()
        if self._exports:
            await unless(give_up, self._exports.take())
        await shared.spool.rotate(session)
        if self.node is None:
            await self.set_node(shared.ingest.sender_of(session) or self._nameless)
        finish = [shared.uploader.drain(session), *(part.finish() for part in (self._logs, self._samples) if part)]
        await unless(give_up, asyncio.gather(*finish))
        if self._logs:  # once more: all events are in objects of their own now
            await unless(give_up, self._logs.finish())
        left = await self._left()
        logs_done = shared.settings.enable_log_collector and not any(name.startswith("logs/") for name in left)
        if logs_done and self.directory:
            logs = self.directory / "logs"
            await asyncio.to_thread(mark_done, shared.spool.directory, session, self.node or self._nameless, logs)
        await shared.spool.note(bad=shared.metrics.bad, lost=shared.metrics.lost)
        seal = node_seal(self.node or self._nameless, shared.spool.counts(session), left)
        await seal_node(shared.store, shared.layout, self.ref, seal, shared.metrics)
        await shared.spool.seal(session)
        if self._record:
            if self._heartbeat:
                await _cancelled([self._heartbeat])
            await self._record.end(reason)
        log.info("a session is closed", extra={"session": session, "reason": reason, "left_behind": left})

    async def _left(self) -> list[str]:
        segments = [segment.path.name for segment in self._shared.spool.segments(self.ref.session)]
        logs = await asyncio.to_thread(self._logs.left) if self._logs else []
        metrics = self._samples.left() if self._samples else []
        return [*segments, *(f"logs/{name}" for name in logs), *metrics]

    async def _name_at_last(self) -> None:
        """Nothing leaves the node before it has a name; one that is learned later is used from then on."""
        if await pause(self._node_known, _NOBODY_TELLS):
            return
        if self.directory and await pause(self._node_known, NOBODY_NAMES - _NOBODY_TELLS):
            return
        node = await self._asked_by_address() if self.directory else None
        if self._node_known.is_set():
            return
        if node is None:
            log.warning(
                "nobody says which node this is: what is kept is filed under a name that was made up",
                extra={"session": self.ref.session, "node": self._nameless},
            )
        await self.set_node(node or self._nameless)

    async def _asked_by_address(self) -> str | None:
        """As KubeRay's collector does it, but once, and only where nothing else tells: nodes are many."""
        settings = self._shared.settings
        if not settings.pod_ip or not settings.fq_ray_ip:
            return None
        from rayhistory.collector.dashboard import node_at  # noqa: PLC0415 - an HTTP client is memory

        return await node_at(settings.pod_ip, settings)

    async def _ship(self) -> None:
        await self._node_known.wait()
        if self._logs:
            await self._logs.run()

    def _ask_dashboard(self, record: SessionRecord) -> "Snapshots":
        # Only the head needs an HTTP client: on all other nodes it would be memory for nothing.
        from rayhistory.collector.dashboard import Dashboard  # noqa: PLC0415
        from rayhistory.collector.schedule import Schedule  # noqa: PLC0415
        from rayhistory.collector.snapshots import Snapshots  # noqa: PLC0415

        shared = self._shared
        return Snapshots(
            session=self.ref.session,
            dashboard=Dashboard(shared.settings, self.ref.session, self._announced_dashboard),
            questions=Schedule(time.monotonic(), shared.settings.poll_interval, shared.settings.additional_endpoints),
            spool=shared.spool,
            put_endpoint=lambda uri, body: shared.store.put(shared.layout.endpoint_key(self.ref, uri), body),
            record=record,
            metrics=shared.metrics,
        )

    def _announced_dashboard(self) -> str | None:
        return find_dashboard(self.directory) if self.directory else None

    def _go(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(keep_going(name, work, self._shared.metrics))


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
