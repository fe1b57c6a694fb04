"""What was acknowledged and is not yet in the store, on the local disk.

Concurrent posts share one write and one fdatasync (group commit), whatever number of categories they touch; but only
as many as a slow disk makes necessary, so that none waits long for the others to be compressed.
All writing is done by one thread, in order; what must not keep it waiting (deleting, counting) by another.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rayhistory.collector.block import Block, merged
from rayhistory.collector.ledger import Ledger
from rayhistory.collector.recovery import left_over, locked
from rayhistory.collector.segment import OpenSegment, Segment, make_directory
from rayhistory.errors import RayHistoryError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger(__name__)
T = TypeVar("T")
Blocks = Mapping[str, Sequence[Block]]
"""What is to be kept of each session."""

_MOST_ACTIVE = 16  # one session is active, and perhaps the one before it: more is somebody's mistake
_MOST_SESSIONS = 1000  # with something on the disk: each costs a directory, a file, and syncs
_UPLOADS_SHARE = 4
_GROUP = 1 << 20
_PER_SECOND = 128 << 20  # is taken however long the disk takes for a sync


class SpoolError(RayHistoryError):
    """The spool takes nothing now: its budget is spent, or the disk fails."""


class Counts(NamedTuple):
    """Of one session, through all restarts."""

    received: int
    stored: int
    set_aside: int
    lost: int
    late: int


class Spool:
    """A quarter of the budget is for the files that are made of segments while they are uploaded: as large as the
    segments, or as their lines when these are uploaded `unpacked`. What does not fit is made in memory."""

    def __init__(
        self, directory: Path, *, budget: int, segment_size: int, segment_age: float, unpacked: bool = False
    ) -> None:
        self.directory = directory
        self.closed: list[Segment] = []
        self.to_seal: dict[str, str | None] = {}
        """Sessions of which an earlier process left something here, or something came after their seal; with the
        node, if it is known."""
        self.bytes = 0
        self.writable = False
        self._for_uploads = budget // _UPLOADS_SHARE
        self._budget = budget - self._for_uploads
        # Unpacked, a segment that is nearly full and a group on top of it are to fit.
        self._largest_group = self._for_uploads // 2 if unpacked else budget
        self._segment_size = min(segment_size, self._largest_group)
        self._segment_age = segment_age
        self._ledger = Ledger(directory / "counts.json")
        self._active: dict[str, OpenSegment] = {}
        self._nodes: dict[str, str] = {}
        self._last_created = 0
        self._lock: int | None = None
        self._waiting: list[tuple[Blocks, int, asyncio.Future[None]]] = []
        self._waiting_bytes = 0
        self._sync_seconds = 0.0
        self._committer: asyncio.Task[None] | None = None
        self._uploading = 0
        self._upload_done = asyncio.Condition()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._clerk = ThreadPoolExecutor(1, thread_name_prefix="clerk")

    @property
    def largest(self) -> int:
        """A body of more than that would never be taken, however empty the spool is, and be sent for ever."""
        return self._budget - 1  # an event alone gets the end of its line

    # At start

    async def open(self) -> None:
        """Takes the directory for this process, and finds what an earlier one left; or raises OSError."""
        if self._lock is None:
            await self._on_writer(self._open)

    def _open(self) -> None:
        make_directory(self.directory)
        if self._lock is None:
            lock = locked(self.directory / "lock")
            try:
                self._ledger.load()
                found = left_over(self.directory)
            except OSError:
                os.close(lock)
                raise
            for segment in found:
                if segment.created_ns in self._ledger.confirmed(segment.session):
                    with suppress(OSError):
                        segment.path.unlink(missing_ok=True)
                    continue
                self.closed.append(segment)
                self.to_seal[segment.session] = segment.node
                self.bytes += segment.size
                self._last_created = max(self._last_created, segment.created_ns)
            self._last_created = max(self._last_created, self._ledger.last_created)
            self._lock = lock
        self.writable = True

    async def probe(self) -> None:
        """After a failure: whether the disk takes data again, without waiting for the next events."""
        if not self.writable:
            with suppress(OSError, UsageError):
                await self._on_writer(self._probe)

    def _probe(self) -> None:
        self._open()
        self.writable = False
        path = self.directory / "probe"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, b"x" * 4096)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            path.unlink(missing_ok=True)
        self.writable = True

    # Events come in

    def has_room_for(self, session: str) -> bool:
        """Somebody may invent sessions without end: all but those that are here already are then too many."""
        if session in self._active:
            return True
        here = {segment.session for segment in [*self.closed, *self._active.values()]}
        return session in here or len(here) < _MOST_SESSIONS

    async def append(self, blocks: Blocks) -> None:
        """Keeps the blocks of each session; when this returns, they are on disk."""
        size = sum(len(block.data) for each in blocks.values() for block in each)
        if self.bytes + self._waiting_bytes + size > self._budget:
            raise SpoolError("the spool's disk budget is spent")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((blocks, size, done))
        self._waiting_bytes += size
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit())
        await done

    async def _commit(self) -> None:
        try:
            while self._waiting:
                batch = self._next_group()
                failure: SpoolError | None = None
                try:
                    await self._on_writer(lambda batch=batch: self._write([blocks for blocks, _, _ in batch]))  # type: ignore[misc]
                except (OSError, UsageError) as error:
                    failure = SpoolError(f"the spool cannot be written: {error}")
                for _, size, done in batch:
                    self._waiting_bytes -= size
                    if done.done():
                        continue
                    if failure:
                        done.set_exception(failure)
                    else:
                        done.set_result(None)
        finally:
            self._committer = None

    def _next_group(self) -> list[tuple[Blocks, int, asyncio.Future[None]]]:
        room = min(max(_GROUP, int(self._sync_seconds * _PER_SECOND)), self._largest_group)
        count = 0
        for _, size, _ in self._waiting:
            room -= size
            if count and room < 0:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _write(self, batch: list[Blocks]) -> None:
        try:
            if self._lock is None:
                self._open()
            for session in dict.fromkeys(session for blocks in batch for session in blocks):
                segment = self._active.get(session) or self._begin(session)
                together = merged(segment.filed(block for blocks in batch for block in blocks.get(session, ())))
                try:
                    self.bytes += segment.append(together)
                    self._sync_seconds = segment.sync_seconds
                except OSError:
                    self._close(session)
                    raise
                if segment.raw >= self._segment_size or segment.size >= self._for_uploads:
                    self._close(session)
        except OSError:
            self.writable = False
            raise
        self.writable = True

    def _begin(self, session: str) -> OpenSegment:
        if len(self._active) >= _MOST_ACTIVE:
            self._close(min(self._active, key=lambda name: self._active[name].opened))
        # The clock may go back: names, which are keys in the store, go on all the same.
        self._last_created = max(self._last_created + 1, time.time_ns())
        self._ledger.begin(session)
        self._ledger.created(self._last_created)
        segment = OpenSegment.create(self.directory / session, self._last_created, self._nodes.get(session))
        self._active[session] = segment
        return segment

    # Segments go out

    async def rotate(self, session: str | None = None) -> None:
        """Closes the session's active segment, or all."""
        await self._on_writer(lambda: self._close_where(lambda segment: session in {None, segment.session}))

    async def rotate_due(self, age: float | None = None, *, but: Container[str] = ()) -> None:
        """Closes what is older than that, or than it should be; some sessions can be left out."""
        oldest = time.monotonic() - (self._segment_age if age is None else age)

        def due(segment: OpenSegment) -> bool:
            return segment.opened <= oldest and segment.session not in but

        if any(map(due, list(self._active.values()))):
            await self._on_writer(lambda: self._close_where(due))

    async def name_node(self, session: str, node: str) -> None:
        """Which node the session's records are of, from now on; those that waited for this are named too."""
        await self._on_writer(lambda: self._name_node(session, node))

    def node_of(self, session: str) -> str | None:
        return self._nodes.get(session)

    def waiting_for_node(self) -> set[str]:
        """Sessions with closed segments of which nobody knows yet whose they are."""
        return {segment.session for segment in list(self.closed) if segment.node is None}

    def segments(self, session: str | None = None) -> list[Segment]:
        return [segment for segment in list(self.closed) if session in {None, segment.session}]

    def oldest(self, session: str | None = None) -> float:
        """Seconds since the oldest thing came that is not yet in the store."""
        here = [*self.closed, *self._active.values()]
        opened = [segment.opened for segment in here if session in {None, segment.session}]
        return time.monotonic() - min(opened) if opened else 0.0

    @asynccontextmanager
    async def room_for_upload(self, size: int) -> "AsyncIterator[bool]":
        """Disk space for the files that are made of a segment; False when they are larger than all there is."""
        if size > self._for_uploads:
            yield False
            return
        async with self._upload_done:
            await self._upload_done.wait_for(lambda: self._uploading + size <= self._for_uploads)
            self._uploading += size
        try:
            yield True
        finally:
            self._uploading -= size
            async with self._upload_done:
                self._upload_done.notify_all()

    async def discard(self, segment: Segment, stored: int, *, whole: bool = True) -> None:
        """After the store has confirmed everything of it: so many events, which may not be all there were."""
        await self._on(self._clerk, lambda: self._strike(segment, stored, whole=whole))
        await self._on_writer(lambda: self._forget(segment))
        if self._ledger.is_sealed(segment.session):
            self.to_seal.setdefault(segment.session, segment.node)

    # Events on their way with the packs

    def open_segment(self, session: str) -> Segment | None:
        """The one that is being written; as many of its bytes as its size says are on disk."""
        return self._active.get(session)

    def stored(self, session: str) -> set[int]:
        """Segments that are in the store as objects of their own, and may still be in packs."""
        return self._ledger.confirmed(session)

    def settle(self, session: str, segments: set[int]) -> None:
        """They are not in packs any more."""
        self._ledger.settle(session, segments)

    async def shut(self) -> None:
        await self.rotate()
        self._writer.shutdown(wait=True)
        self._clerk.shutdown(wait=True)
        if self._lock is not None:
            os.close(self._lock)

    # Counts

    async def note(self, *, bad: int, lost: int) -> None:
        """What this process has set aside and lost so far; kept for the case that it is killed."""
        if self._ledger.note(bad=bad, lost=lost) and self._lock is not None:
            with suppress(OSError):  # a full disk costs the counts, and neither uploads nor the session's end
                await self._on(self._clerk, self._ledger.save)

    def counts(self, session: str) -> Counts:
        received, stored, set_aside, lost, late = self._ledger.of(session)
        here = [each for each in [*self.closed, *self._active.values()] if each.session == session]
        return Counts(received + sum(each.events for each in here), stored, set_aside, lost, late)

    async def seal(self, session: str) -> None:
        """The session's seal is written: what reaches the store from now on is late."""
        self._ledger.seal(session, sealed=True)
        if self._lock is not None:
            with suppress(OSError):  # a disk that fails costs the count of what comes late
                await self._on(self._clerk, self._ledger.save)

    def knows(self, session: str) -> bool:
        """Whether anything of the session was ever here."""
        return session in self.to_seal or self._ledger.knows(session)

    def reopen(self, session: str) -> None:
        """The session goes on, though it may have been sealed."""
        self._ledger.seal(session, sealed=False)

    # On the writer's thread

    def _close_where(self, due: Callable[[OpenSegment], bool]) -> None:
        for session in [name for name, segment in self._active.items() if due(segment)]:
            self._close(session)

    def _close(self, session: str) -> None:
        segment = self._active.pop(session)
        with suppress(OSError):  # what was acknowledged is synced
            segment.close()
        if segment.size:
            self.closed.append(segment)
        else:
            segment.path.unlink(missing_ok=True)

    def _name_node(self, session: str, node: str) -> None:
        if session in self._active and self._nodes.get(session) not in {None, node}:
            self._close(session)
        self._nodes[session] = node
        for name in list(self._nodes)[:-_MOST_SESSIONS]:
            del self._nodes[name]
        for segment in [*self.closed, *self._active.values()]:
            if segment.session == session and segment.node is None:
                segment.belongs_to(node)

    def _forget(self, segment: Segment) -> None:
        if segment in self.closed:
            self.closed.remove(segment)
            self.bytes -= segment.size
        with suppress(OSError):
            segment.path.parent.rmdir()

    # On the clerk's thread

    def _strike(self, segment: Segment, stored: int, *, whole: bool) -> None:
        session, events = segment.session, segment.events
        try:
            self._ledger.confirm(session, segment.created_ns, received=events, stored=stored, whole=whole)
        except OSError as error:  # the disk is full: deleting is what helps
            log.warning("counts could not be written", extra={"reason": str(error)})
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:  # the next start knows that it is stored
            log.warning("a spool file could not be deleted", extra={"path": str(segment.path), "reason": str(error)})

    async def _on_writer(self, work: Callable[[], T]) -> T:
        return await self._on(self._writer, work)

    async def _on(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
