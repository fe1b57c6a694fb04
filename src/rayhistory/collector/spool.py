"""What was acknowledged and is not yet in the store, on the local disk.

Concurrent posts share one write and one fdatasync (group commit), whatever number of categories they touch.
All changes to the files are made by one thread, in order.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rayhistory.collector.segment import OpenSegment, Segment, make_directory
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.layout.session import is_session_name

log = logging.getLogger(__name__)
T = TypeVar("T")

_MOST_ACTIVE = 16  # one session is active, and perhaps the one before it: more is somebody's mistake


class SpoolError(RayHistoryError):
    """The spool takes nothing now: its budget is spent, or the disk fails."""


class Spool:
    def __init__(self, directory: Path, *, budget: int, segment_size: int, segment_age: float) -> None:
        self.directory = directory
        self.closed: list[Segment] = []
        self.bytes = 0
        self.writable = False
        self._budget = budget
        self._segment_size = min(segment_size, budget // 2)  # or one segment alone could spend it
        self._segment_age = segment_age
        self._active: dict[str, OpenSegment] = {}
        self._nodes: dict[str, str] = {}
        self._last_created = 0
        self._lock: int | None = None
        self._waiting: list[tuple[Mapping[str, bytes], asyncio.Future[None]]] = []
        self._waiting_bytes = 0
        self._committer: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spool")

    # At start

    async def open(self) -> None:
        """Takes the directory for this process, and finds what an earlier one left; or raises OSError."""
        await self._on_writer(self._open)

    def _open(self) -> None:
        make_directory(self.directory)
        if self._lock is None:
            found = _left_over(self.directory)
            self._lock = _locked(self.directory / "lock")
            self.closed += found
            self.bytes += sum(segment.size for segment in found)
        self.writable = True

    # Events come in

    async def append(self, lines: Mapping[str, bytes]) -> None:
        """Keeps the records of each session; when this returns, they are on disk."""
        size = sum(map(len, lines.values()))
        if self.bytes + self._waiting_bytes + size > self._budget:
            raise SpoolError("the spool's disk budget is spent")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((lines, done))
        self._waiting_bytes += size
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit())
        await done

    async def _commit(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                failure: SpoolError | None = None
                try:
                    await self._on_writer(lambda batch=batch: self._write([lines for lines, _ in batch]))  # type: ignore[misc]
                except (OSError, UsageError) as error:
                    failure = SpoolError(f"the spool cannot be written: {error}")
                for lines, done in batch:
                    self._waiting_bytes -= sum(map(len, lines.values()))
                    if done.done():
                        continue
                    if failure:
                        done.set_exception(failure)
                    else:
                        done.set_result(None)
        finally:
            self._committer = None

    def _write(self, batch: list[Mapping[str, bytes]]) -> None:
        try:
            if self._lock is None:
                self._open()
            for session in dict.fromkeys(session for lines in batch for session in lines):
                data = b"".join(lines[session] for lines in batch if session in lines)
                segment = self._active.get(session) or self._begin(session)
                try:
                    segment.append(data)
                except OSError:
                    self._close(session)
                    raise
                self.bytes += len(data)
                if segment.size >= self._segment_size:
                    self._close(session)
        except OSError:
            self.writable = False
            raise
        self.writable = True

    def _begin(self, session: str) -> OpenSegment:
        if len(self._active) >= _MOST_ACTIVE:
            self._close(min(self._active, key=lambda name: self._active[name].opened))
        self._last_created = max(self._last_created + 1, time.time_ns())
        segment = OpenSegment.create(self.directory / session, self._last_created, self._nodes.get(session))
        self._active[session] = segment
        return segment

    # Segments go out

    async def rotate(self, session: str | None = None) -> None:
        """Closes the session's active segment, or all."""
        await self._on_writer(lambda: self._close_where(lambda segment: session in {None, segment.session}))

    async def rotate_due(self) -> None:
        oldest = time.monotonic() - self._segment_age
        await self._on_writer(lambda: self._close_where(lambda segment: segment.opened <= oldest))

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

    async def discard(self, segment: Segment) -> None:
        """After the store has confirmed everything of it."""
        await self._on_writer(lambda: self._discard(segment))

    async def shut(self) -> None:
        await self.rotate()
        self._writer.shutdown(wait=True)
        if self._lock is not None:
            os.close(self._lock)

    def _close_where(self, due: Callable[[OpenSegment], bool]) -> None:
        for session in [name for name, segment in self._active.items() if due(segment)]:
            self._close(session)

    def _close(self, session: str) -> None:
        segment = self._active.pop(session)
        segment.close()
        if segment.size:
            self.closed.append(segment)
        else:
            segment.path.unlink(missing_ok=True)

    def _name_node(self, session: str, node: str) -> None:
        if session in self._active and self._nodes.get(session) not in {None, node}:
            self._close(session)
        self._nodes[session] = node
        for segment in [*self.closed, *self._active.values()]:
            if segment.session == session and segment.node is None:
                segment.belongs_to(node)

    def _discard(self, segment: Segment) -> None:
        segment.path.unlink(missing_ok=True)
        if segment in self.closed:
            self.closed.remove(segment)
            self.bytes -= segment.size
        with suppress(OSError):
            segment.path.parent.rmdir()

    async def _on_writer(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)


def _locked(path: Path) -> int:
    """Two collectors in one spool would upload and delete each other's open files."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"another collector uses the spool {path.parent}; "
            "give this one its own --event-data-dir or --ray-cluster-name"
        ) from None
    return descriptor


def _left_over(directory: Path) -> list[Segment]:
    found: list[Segment] = []
    for folder in sorted(directory.iterdir()):
        if not is_session_name(folder.name):
            continue
        try:
            segments = [segment for path in folder.iterdir() if (segment := Segment.found(path))]
        except OSError as error:
            log.warning("part of the spool cannot be read", extra={"path": str(folder), "reason": str(error)})
            continue
        found += sorted(segments, key=lambda segment: segment.created_ns)
    return found
