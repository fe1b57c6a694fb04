"""Write a session's start record, heartbeat and end record, and each node's seal."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from rayhistory import __version__
from rayhistory.collector.session.ray_discovery import session_start_ms
from rayhistory.collector.spool.spool import Spool, SpoolCounts
from rayhistory.collector.supervise import backoff_delays, wait_for_event
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import ObjectExists, ObjectNotFound, StoreDenied, StoreError
from rayhistory.sessions import MAX_RECORD_BYTES, EndRecord, Layout, NodeSeal, SessionRef, StartRecord, read_record
from rayhistory.sessions.keys import START_RECORD
from rayhistory.storage import ObjectInfo, Store

log = logging.getLogger(__name__)

_MAX_SEALED_NAMES = 100
_MAX_RETRY_DELAY_S = 30.0


class SessionRecord:
    """The records of one session. Only the head's collector writes them.

    An ended session stays ended: a client that sends events of it, or creates a directory with its name, cannot reopen
    it. Two spools can reopen it:

    - the spool that recorded the end, if Ray runs in the session's directory (`is_running`)
    - a new spool, for a head that resumes its session in a new pod. The end record stays, and the new heartbeat voids
      it.

    A job cannot fake the second case: its own session is in the spool and in the store before the job can run.
    """

    def __init__(
        self,
        ref: SessionRef,
        directory: Path | None,
        store: Store,
        layout: Layout,
        telemetry: Telemetry,
        *,
        spool: Spool,
        is_running: bool,
    ) -> None:
        now = now_ms()
        self._ref = ref
        self._store = store
        self._layout = layout
        self._telemetry = telemetry
        self._spool = spool
        self._is_running = is_running
        self._final = False
        """True if the session has an end record that must not be removed."""
        self._start = StartRecord(
            namespace=ref.namespace,
            cluster=ref.cluster,
            session=ref.session,
            started_ms=session_start_ms(directory, now) if directory else now,
            owner_kind=ref.owner_kind,
            owner_name=ref.owner_name,
            collector_version=__version__,
        )
        self._written: bytes | None = None
        self._updated = asyncio.Event()

    async def run(self, heartbeat_s: float) -> None:
        """Write the start record, then rewrite the heartbeat at each interval, and the start record when it changes."""
        await self._retry(self._register)
        while not self._final:
            await self._retry(lambda: self._store.put(self._layout.alive_key(self._ref), b""))
            self._updated.clear()
            await self._retry(self._write_start)
            await wait_for_event(self._updated, heartbeat_s)

    def update(self, *, node: str | None = None, ray_version: str | None = None, dashboard: str | None = None) -> None:
        """Add information to the start record that was not known at the start."""
        self._start.node_id = node or self._start.node_id
        self._start.ray_version = ray_version or self._start.ray_version
        self._start.dashboard_address = dashboard or self._start.dashboard_address
        self._updated.set()

    async def end(self, reason: str, ended_ms: int) -> None:
        """Write the end record, which marks a clean end."""
        if self._written is None:
            await self._retry(self._register)
        if self._final:
            return
        await self._retry(self._write_start)
        await self._spool.mark_ended(self._ref.session, ended=True)
        record = msgspec.json.encode(EndRecord(ended_ms=ended_ms, reason=reason))
        await self._retry(lambda: self._store.put(self._layout.end_key(self._ref), record))
        with contextlib.suppress(StoreError):  # only makes listings shorter
            await self._store.delete(self._layout.alive_key(self._ref))

    async def _register(self) -> None:
        await self._store.put(self._layout.metadata_key(self._ref), b"")
        encoded = msgspec.json.encode(self._start)
        try:
            await self._store.create(self._layout.start_key(self._ref), encoded)
        except ObjectExists:
            await self._resume()
            return
        self._written = encoded
        await self._read_stored_time()

    async def _resume(self) -> None:
        """Keep the start record of an earlier collector, and remove the end record that this spool wrote."""
        session, end_key = self._ref.session, self._layout.end_key(self._ref)
        end = await self._head(end_key)
        is_own = self._spool.has_ended(session)
        if end and not (self._is_running and (is_own or await self._is_first_since(end.modified))):
            log.warning("session already has an end record, keeping it", extra={"session": session})
            self._written, self._final = b"", True
            return
        stored = await self._store.get_range(self._layout.start_key(self._ref), 0, MAX_RECORD_BYTES)
        earlier = read_record(stored, StartRecord)
        if earlier is None:
            log.warning("cannot read the session's start record, rewriting it", extra={"session": self._ref.session})
        else:
            self._start.started_ms = earlier.started_ms
            self._start.node_id = self._start.node_id or earlier.node_id
            self._start.ray_version = self._start.ray_version or earlier.ray_version
            self._start.dashboard_address = self._start.dashboard_address or earlier.dashboard_address
            self._start.stored_ms = earlier.stored_ms
        if self._start.stored_ms is None:
            await self._read_stored_time()
        await self._store.put(self._layout.alive_key(self._ref), b"")
        if end and is_own:
            with contextlib.suppress(StoreDenied):  # a heartbeat later than the record voids it
                await self._store.delete(end_key)
            await self._spool.mark_ended(session, ended=False)
        elif end:
            log.info("found the end record of another collector, resuming the session", extra={"session": session})
        self._written = stored

    async def _is_first_since(self, ended: float) -> bool:
        """Return whether a new head resumes the ended session.

        It does if the spool has no other session, and if no other session of the cluster began after `ended`.
        """
        if self._spool.sessions - {self._ref.session}:
            return False
        try:
            async for info in self._store.list_all(self._layout.records_prefix(self._ref).rpartition("/")[0]):
                found = self._layout.parse_record_key(info.key)
                is_other = found and found[1] == START_RECORD and found[0].session != self._ref.session
                if is_other and info.modified > ended:
                    return False
        except StoreDenied:
            return False
        return True

    async def _head(self, key: str) -> ObjectInfo | None:
        """Return the object's metadata, or None if it is missing.

        Without list permission, S3 reports missing objects as denied.
        """
        try:
            return await self._store.head(key)
        except (ObjectNotFound, StoreDenied):
            return None

    async def _read_stored_time(self) -> None:
        """Read the time at which the start record was stored. The next write of the record includes this time."""
        with contextlib.suppress(StoreError):  # the record's modification time stands in for it
            self._start.stored_ms = int((await self._store.head(self._layout.start_key(self._ref))).modified * 1000)

    async def _write_start(self) -> None:
        encoded = msgspec.json.encode(self._start)
        if encoded != self._written:
            await self._store.put(self._layout.start_key(self._ref), encoded)
            self._written = encoded

    async def _retry(self, work: Callable[[], Awaitable[None]]) -> None:
        await put_with_retries(work, self._telemetry, "record")


def build_node_seal(node: str, counts: SpoolCounts, unshipped: list[str]) -> NodeSeal:
    return NodeSeal(
        node_id=node,
        sealed_ms=now_ms(),
        received=counts.received,
        stored=counts.stored,
        set_aside=counts.quarantined,
        dropped=counts.lost,
        late=counts.late,
        left_behind=unshipped[:_MAX_SEALED_NAMES],
    )


async def write_node_seal(store: Store, layout: Layout, ref: SessionRef, seal: NodeSeal, telemetry: Telemetry) -> None:
    key, data = layout.node_seal_key(ref, seal.node_id), msgspec.json.encode(seal)
    await put_with_retries(lambda: store.put(key, data), telemetry, "record")


async def put_with_retries(work: Callable[[], Awaitable[None]], telemetry: Telemetry, kind: str) -> None:
    """Repeat a write to the store until it succeeds or is cancelled."""
    for delay in backoff_delays(0.5, _MAX_RETRY_DELAY_S):
        try:
            await work()
        except (StoreError, OSError) as error:
            telemetry.upload_retries.labels(kind).inc()
            log.warning(
                "session record upload failed, retrying", extra={"reason": str(error), "delay_s": round(delay, 1)}
            )
            await asyncio.sleep(delay)
        else:
            return


def now_ms() -> int:
    return time.time_ns() // 10**6
