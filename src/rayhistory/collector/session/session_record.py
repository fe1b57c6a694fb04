"""The session's record: that it exists, since when, that it is alive, that it ended; and each node's seal."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from rayhistory import __version__
from rayhistory.collector.discovery import started_ms
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.spool import Counts
from rayhistory.collector.supervise import delays, pause
from rayhistory.errors import ObjectExists, StoreError
from rayhistory.layout import LARGEST_RECORD, EndRecord, Layout, NodeSeal, SessionRef, StartRecord, read_record
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_MOST_NAMES = 100


class SessionRecord:
    """Kept by the head's collector."""

    def __init__(
        self,
        ref: SessionRef,
        directory: Path | None,
        store: Store,
        layout: Layout,
        metrics: Metrics,
        *,
        heartbeat: float,
    ) -> None:
        now = now_ms()
        self._ref = ref
        self._store = store
        self._layout = layout
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._start = StartRecord(
            namespace=ref.namespace,
            cluster=ref.cluster,
            session=ref.session,
            started_ms=started_ms(directory, now) if directory else now,
            owner_kind=ref.owner_kind,
            owner_name=ref.owner_name,
            collector_version=__version__,
        )
        self._written: bytes | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Makes the session known, then says again and again that it is alive."""
        await self._insist(self._begin)
        while True:
            await self._insist(lambda: self._store.put(self._layout.alive_key(self._ref), b""))
            self._news.clear()
            await self._insist(self._write_start)
            await pause(self._news, self._heartbeat)

    def learn(self, *, node: str | None = None, ray_version: str | None = None, dashboard: str | None = None) -> None:
        """Facts that come after the beginning."""
        self._start.node_id = node or self._start.node_id
        self._start.ray_version = ray_version or self._start.ray_version
        self._start.dashboard_address = dashboard or self._start.dashboard_address
        self._news.set()

    async def end(self, reason: str) -> None:
        """The last word: readers take it as a clean end."""
        if self._written is None:
            await self._insist(self._begin)
        await self._insist(self._write_start)
        record = msgspec.json.encode(EndRecord(ended_ms=now_ms(), reason=reason))
        await self._insist(lambda: self._store.put(self._layout.end_key(self._ref), record))
        with contextlib.suppress(StoreError):  # one key less for every listing, and nothing more
            await self._store.delete(self._layout.alive_key(self._ref))

    async def _begin(self) -> None:
        await self._store.put(self._layout.metadata_key(self._ref), b"")
        written = msgspec.json.encode(self._start)
        try:
            await self._store.create(self._layout.start_key(self._ref), written)
        except ObjectExists:
            await self._go_on()
            return
        self._written = written

    async def _go_on(self) -> None:
        """This collector was started again: the session began when it began, and has not ended."""
        before = await self._store.get_range(self._layout.start_key(self._ref), 0, LARGEST_RECORD)
        earlier = read_record(before, StartRecord)
        if earlier is None:
            log.warning("start.json cannot be read and is written anew", extra={"session": self._ref.session})
        else:
            self._start.started_ms = earlier.started_ms
            self._start.node_id = self._start.node_id or earlier.node_id
            self._start.ray_version = self._start.ray_version or earlier.ray_version
            self._start.dashboard_address = self._start.dashboard_address or earlier.dashboard_address
        await self._store.put(self._layout.alive_key(self._ref), b"")
        await self._store.delete(self._layout.end_key(self._ref))
        self._written = before

    async def _write_start(self) -> None:
        encoded = msgspec.json.encode(self._start)
        if encoded != self._written:
            await self._store.put(self._layout.start_key(self._ref), encoded)
            self._written = encoded

    async def _insist(self, work: Callable[[], Awaitable[None]]) -> None:
        await insist(work, self._metrics, "record")


def node_seal(node: str, counts: Counts, left: list[str]) -> NodeSeal:
    return NodeSeal(
        node_id=node,
        sealed_ms=now_ms(),
        received=counts.received,
        stored=counts.stored,
        set_aside=counts.set_aside,
        dropped=counts.lost,
        late=counts.late,
        left_behind=left[:_MOST_NAMES],
    )


async def seal_node(store: Store, layout: Layout, ref: SessionRef, seal: NodeSeal, metrics: Metrics) -> None:
    key, data = layout.node_seal_key(ref, seal.node_id), msgspec.json.encode(seal)
    await insist(lambda: store.put(key, data), metrics, "record")


async def insist(work: Callable[[], Awaitable[None]], metrics: Metrics, kind: str) -> None:
    """Repeats a write to the store until it succeeds or is cancelled."""
    for seconds in delays(0.5, 30.0):
        try:
            await work()
        except (StoreError, OSError) as error:
            metrics.upload_retries.labels(kind).inc()
            log.warning("the store did not take a record", extra={"reason": str(error), "pause": round(seconds, 1)})
            await asyncio.sleep(seconds)
        else:
            return


def now_ms() -> int:
    return time.time_ns() // 10**6
