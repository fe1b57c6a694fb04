"""The spool: all data on local disk that is acknowledged and not yet uploaded.

Concurrent requests share one write and one fdatasync (`pending_writes.py`). One thread writes segments. Another thread
deletes segments and writes the ledger, so that this does not delay requests.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar

from rayhistory.collector.spool.block import merge_blocks
from rayhistory.collector.spool.ledger import Ledger
from rayhistory.collector.spool.migration import take_over
from rayhistory.collector.spool.pending_writes import Blocks, PendingWrites
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.recovery import find_segments, lock_spool
from rayhistory.collector.spool.segment import OpenSegment, Segment
from rayhistory.collector.spool.upload_space import UploadSpace
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.masking import mask_env_vars_in_lines

log = logging.getLogger(__name__)
T = TypeVar("T")

_PROBE_FILE = "probe"
_MAX_OPEN_SEGMENTS = 16  # normally one session sends events, or two while Ray restarts
_MAX_SESSIONS = 1000  # with data on disk: each costs a directory, a file, and syncs
_UPLOAD_SPACE_DIVISOR = 4


class SpoolError(RayHistoryError):
    """The spool cannot accept data now: its disk budget is used up, or the disk fails."""


class SpoolCounts(NamedTuple):
    """Event counts of one session on this node, over all collector processes."""

    received: int
    stored: int
    quarantined: int
    lost: int
    late: int


class Spool:
    """The write-ahead log of one collector.

    A quarter of the disk budget is reserved for files that are being uploaded. The files of a segment are as large as
    the segment, or if `uncompressed`, as its lines before compression. Files that do not fit are made in memory.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        *,
        budget: int,
        segment_size: int,
        segment_age: float,
        uncompressed: bool = False,
        mask_env_vars: bool = False,
        predecessor: PrivateDirectory | None = None,
    ) -> None:
        """`predecessor` is the spool of an earlier release, whose data is moved to this one."""
        self.directory = directory
        self.closed: list[Segment] = []
        self.to_seal: dict[str, str | None] = {}
        """The node, if known, of each session to seal because it has late events or events of an earlier process."""
        self.bytes = 0
        self.writable = False
        self.upload_space = UploadSpace(budget // _UPLOAD_SPACE_DIVISOR)
        self._budget = budget - self.upload_space.size
        # Uncompressed, a nearly full segment and one more group must fit into the upload space.
        max_group_bytes = self.upload_space.size // 2 if uncompressed else budget
        self._pending = PendingWrites(max_group_bytes)
        self._segment_size = min(segment_size, max_group_bytes)
        self._segment_age = segment_age
        self._mask_env_vars = mask_env_vars
        self._ledger = Ledger(directory)
        self._predecessor = predecessor
        self._open_segments: dict[str, OpenSegment] = {}
        self._nodes: dict[str, str] = {}
        self._last_created = 0
        self._lock_descriptor: int | None = None
        self._commit_task: asyncio.Task[None] | None = None
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="spool-writer")
        self._ledger_thread = ThreadPoolExecutor(1, thread_name_prefix="spool-ledger")

    @property
    def max_body_bytes(self) -> int:
        """The largest body that fits into an empty spool. Ray would retry a larger one forever."""
        return self._budget - 1  # a newline is added to a single event

    # Start

    async def open(self) -> None:
        """Lock the directory and find the segments of earlier collector processes. Raise OSError on failure."""
        if self._lock_descriptor is None:
            await self._on_writer(self._open)

    async def require_open(self) -> None:
        """Open the spool if earlier attempts failed; raise SpoolError if it still cannot be opened."""
        try:
            await self.open()
        except (OSError, UsageError) as error:
            raise SpoolError(f"cannot open the spool: {error}") from None

    def _open(self) -> None:
        self.directory.make()
        if self._lock_descriptor is None:
            lock = lock_spool(self.directory)
            try:
                self._ledger.load()
                if self._predecessor:
                    take_over(self._predecessor, self.directory, self._ledger.sessions)
                    self._ledger.load()
                    with suppress(OSError):  # the disk may be full
                        self._ledger.save()
                found = find_segments(self.directory)
            except OSError:
                os.close(lock)
                raise
            for segment in found:
                if segment.created_ns in self._ledger.uploaded_segments(segment.session):
                    with suppress(OSError):
                        segment.folder.unlink(segment.name)
                    continue
                self.closed.append(segment)
                self.to_seal[segment.session] = segment.node
                self.bytes += segment.size
                self._last_created = max(self._last_created, segment.created_ns)
            self._last_created = max(self._last_created, self._ledger.last_created)
            self._lock_descriptor = lock
        self.writable = True

    async def probe(self) -> None:
        """After a failure, check whether the disk works again, without waiting for the next events."""
        if not self.writable:
            with suppress(OSError, UsageError):
                await self._on_writer(self._probe)

    def _probe(self) -> None:
        self._open()
        self.writable = False
        try:
            descriptor = self.directory.create(_PROBE_FILE)
            try:
                os.write(descriptor, b"x" * 4096)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            self.directory.unlink(_PROBE_FILE)
        self.writable = True

    # Incoming events

    def accepts_session(self, session: str) -> bool:
        """Return False for a new session above a limit, because clients that invent sessions must not fill the disk."""
        if session in self._open_segments:
            return True
        sessions = {segment.session for segment in [*self.closed, *self._open_segments.values()]}
        return session in sessions or len(sessions) < _MAX_SESSIONS

    async def append(self, blocks: Blocks) -> None:
        """Write the blocks and return when they are synced to disk; raise SpoolError if that fails."""
        if self._mask_env_vars:
            blocks = await asyncio.to_thread(_masked, blocks)
        size = sum(len(block.data) for each in blocks.values() for block in each)
        if self.bytes + self._pending.bytes + size > self._budget:
            raise SpoolError("spool is full: it reached --event-max-disk-mb")
        done = self._pending.add(blocks, size)
        if self._commit_task is None:
            self._commit_task = asyncio.create_task(self._commit())
        await done

    async def _commit(self) -> None:
        try:
            while group := self._pending.next_group():
                failure: SpoolError | None = None
                try:
                    await self._on_writer(lambda group=group: self._write([each.blocks for each in group]))  # type: ignore[misc]
                except (OSError, UsageError) as error:
                    failure = SpoolError(f"cannot write to the spool: {error}")
                self._pending.finish(group, failure)
        finally:
            self._commit_task = None

    def _write(self, batch: list[Blocks]) -> None:
        try:
            if self._lock_descriptor is None:
                self._open()
            for session in dict.fromkeys(session for blocks in batch for session in blocks):
                segment = self._open_segments.get(session) or self._open_new_segment(session)
                blocks = segment.limit_categories(block for each in batch for block in each.get(session, ()))
                try:
                    self.bytes += segment.append(merge_blocks(blocks))
                    self._pending.sync_seconds = segment.sync_seconds
                    segment.last_append_ms = time.time_ns() // 10**6
                except OSError:
                    self._close(session)
                    raise
                if segment.raw_size >= self._segment_size or segment.size >= self.upload_space.size:
                    self._close(session)
        except OSError:
            self.writable = False
            raise
        self.writable = True

    def _open_new_segment(self, session: str) -> OpenSegment:
        if len(self._open_segments) >= _MAX_OPEN_SEGMENTS:
            self._close(min(self._open_segments, key=lambda name: self._open_segments[name].opened))
        # The clock may go back, but names must stay unique and increasing: they are keys in the store.
        self._last_created = max(self._last_created + 1, time.time_ns())
        self._ledger.begin(session)
        self._ledger.record_created(self._last_created)
        segment = OpenSegment.create(self.directory.folder(session), self._last_created, self._nodes.get(session))
        self._open_segments[session] = segment
        return segment

    # Closed segments

    async def rotate(self, session: str | None = None) -> None:
        """Close the open segment of the session, or those of all sessions."""
        await self._on_writer(lambda: self._close_where(lambda segment: session in {None, segment.session}))

    async def rotate_due(self, age: float | None = None, *, exclude: Container[str] = ()) -> None:
        """Close open segments that are older than `age`, by default the configured rotation interval."""
        oldest = time.monotonic() - (self._segment_age if age is None else age)

        def due(segment: OpenSegment) -> bool:
            return segment.opened <= oldest and segment.session not in exclude

        if any(map(due, list(self._open_segments.values()))):
            await self._on_writer(lambda: self._close_where(due))

    async def assign_node(self, session: str, node: str) -> None:
        """Set the node of the session's new segments, and of segments that have none yet."""
        await self._on_writer(lambda: self._assign_node(session, node))

    def node_of(self, session: str) -> str | None:
        return self._nodes.get(session)

    def sessions_without_node(self) -> set[str]:
        """Return the sessions that have closed segments whose node is not known yet."""
        return {segment.session for segment in list(self.closed) if segment.node is None}

    def segments(self, session: str | None = None) -> list[Segment]:
        return [segment for segment in list(self.closed) if session in {None, segment.session}]

    def oldest_age(self, session: str | None = None) -> float:
        """Return the age in seconds of the oldest segment that is not uploaded, or 0."""
        segments = [*self.closed, *self._open_segments.values()]
        opened = [segment.opened for segment in segments if session in {None, segment.session}]
        return time.monotonic() - min(opened) if opened else 0.0

    async def discard(self, segment: Segment, stored: int, *, complete: bool = True) -> None:
        """Delete an uploaded segment and count `stored` events. `complete` is False if some of it was damaged."""
        await self._run_on(self._ledger_thread, lambda: self._record_and_delete(segment, stored, complete=complete))
        await self._on_writer(lambda: self._forget(segment))
        if self._ledger.is_sealed(segment.session):
            self.to_seal.setdefault(segment.session, segment.node)

    # Segments as streams in packs

    def open_segment(self, session: str) -> OpenSegment | None:
        """Return the open segment of the session. Its first `size` bytes are synced."""
        return self._open_segments.get(session)

    def uploaded_segments(self, session: str) -> set[int]:
        """Return segments whose objects are stored and whose streams may still be in packs."""
        return self._ledger.uploaded_segments(session)

    def forget_uploaded(self, session: str, segments: set[int]) -> None:
        """Drop uploaded segments whose streams are no longer in packs."""
        self._ledger.forget_uploaded(session, segments)

    async def close(self) -> None:
        await self.rotate()
        self._writer_thread.shutdown(wait=True)
        self._ledger_thread.shutdown(wait=True)
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
        self.directory.close()

    # Counts

    async def record_totals(self, *, quarantined: int, lost: int) -> None:
        """Write the totals of this process to the ledger, so that they survive a kill."""
        if self._ledger.record_totals(quarantined=quarantined, lost=lost):
            await self._save_ledger()

    def counts(self, session: str) -> SpoolCounts:
        received, stored, quarantined, lost, late = self._ledger.counts(session)
        spooled = sum(each.events for each in [*self.closed, *self._open_segments.values()] if each.session == session)
        return SpoolCounts(received + spooled, stored, quarantined, lost, late)

    # Sessions

    def has_seen(self, session: str) -> bool:
        """Return whether the session was collected here, or the spool has events of it."""
        return session in self.to_seal or self._ledger.has_seen(session)

    @property
    def sessions(self) -> set[str]:
        """All sessions that were collected here, or that the spool has events of."""
        return self._ledger.sessions | set(self.to_seal)

    def open_sessions(self) -> list[str]:
        """Return sessions that were collected here and not sealed, the latest first."""
        return self._ledger.open_sessions()

    def reopen(self, session: str) -> None:
        """Record that the session is collected, even if it was sealed."""
        self._ledger.reopen(session)

    async def mark_sealed(self, session: str) -> None:
        """Record that the session's seal is written. Events that are stored later are late."""
        self._ledger.set_sealed(session)
        await self._save_ledger()

    async def mark_ended(self, session: str, *, ended: bool) -> None:
        """Record that this collector writes the session's end record, or has removed it."""
        self._ledger.set_ended(session, ended=ended)
        await self._save_ledger()

    def has_ended(self, session: str) -> bool:
        """Return whether this spool's collector wrote the session's end record."""
        return self._ledger.has_ended(session)

    async def _save_ledger(self) -> None:
        if self._lock_descriptor is not None:
            with suppress(OSError):  # a full disk must not stop uploads or the end of a session
                await self._run_on(self._ledger_thread, self._ledger.save)

    # On the writer thread

    def _close_where(self, due: Callable[[OpenSegment], bool]) -> None:
        for session in [name for name, segment in self._open_segments.items() if due(segment)]:
            self._close(session)

    def _close(self, session: str) -> None:
        segment = self._open_segments.pop(session)
        with suppress(OSError):  # acknowledged data is synced already
            segment.close()
        if segment.size:
            self.closed.append(segment)
        else:
            segment.folder.unlink(segment.name)

    def _assign_node(self, session: str, node: str) -> None:
        if session in self._open_segments and self._nodes.get(session) not in {None, node}:
            self._close(session)
        self._nodes[session] = node
        for name in list(self._nodes)[:-_MAX_SESSIONS]:
            del self._nodes[name]
        for segment in [*self.closed, *self._open_segments.values()]:
            if segment.session == session and segment.node is None:
                segment.assign_node(node)

    def _forget(self, segment: Segment) -> None:
        if segment in self.closed:
            self.closed.remove(segment)
            self.bytes -= segment.size
        with suppress(OSError):
            segment.folder.remove()

    # On the ledger thread

    def _record_and_delete(self, segment: Segment, stored: int, *, complete: bool) -> None:
        session, events = segment.session, segment.events
        try:
            self._ledger.record_upload(session, segment.created_ns, received=events, stored=stored, complete=complete)
        except OSError as error:  # go on: if the disk is full, the deletion below frees it
            fields = {"reason": str(error)}
            log.warning("cannot write event counts of the spool, counts of this upload may be lost", extra=fields)
        try:
            segment.folder.unlink(segment.name)
        except OSError as error:  # the ledger has it, so the next start deletes it
            fields = {"path": str(segment.path), "reason": str(error)}
            log.warning("cannot delete uploaded spool segment, the next start deletes it", extra=fields)

    async def _on_writer(self, work: Callable[[], T]) -> T:
        return await self._run_on(self._writer_thread, work)

    async def _run_on(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)


def _masked(blocks: Blocks) -> Blocks:
    return {
        session: [block._replace(data=mask_env_vars_in_lines(block.data)) for block in each]
        for session, each in blocks.items()
    }
