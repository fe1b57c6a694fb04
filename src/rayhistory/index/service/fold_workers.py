"""Fold processes that serve several jobs, because starting Python takes longer than a small fold.

A worker is reused only after it reported that it is ready, which it never does after a failure. It ends after a large
job, or after many jobs, to free its memory.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from rayhistory.index.child_process import child_process
from rayhistory.index.fold.fold_process import FoldJob, FoldReport

log = logging.getLogger(__name__)

_MODULE = "rayhistory.index.fold.fold_process"
_IDLE_S = 60.0
_WARM_UP_DELAY_S = 2.0
"""Delay after the server's start, because the server has more urgent work then."""
_MAX_FINISH_S = 5.0
_MAX_JOBS = 100
_MAX_REUSE_BYTES = 32 << 20
"""Maximum size of a session after which a worker is reused. After a larger one, it ends to free its memory."""


class WorkerDied(Exception):
    """A worker ended before its job was done. The message is its error output."""


class FoldWorker:
    """One fold process."""

    def __init__(self, stack: AsyncExitStack, process: asyncio.subprocess.Process) -> None:
        self._stack = stack
        self._process = process
        assert process.stderr  # noqa: S101
        self._stderr = asyncio.create_task(process.stderr.read())
        self.jobs = 0
        """Number of jobs that this worker has done."""
        self._session = ""
        """The session of the last job."""

    @classmethod
    async def start(cls) -> "FoldWorker":
        stack = AsyncExitStack()
        return cls(stack, await stack.enter_async_context(child_process(_MODULE)))

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def send(self, job: FoldJob) -> None:
        assert self._process.stdin  # noqa: S101
        self.jobs += 1
        self._session = job.ref.path
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        with contextlib.suppress(ConnectionError):  # the next report says that the worker died
            await self._process.stdin.drain()

    async def report(self) -> FoldReport:
        """Wait for the next report, and log warnings before it; raise WorkerDied if there is none."""
        assert self._process.stdout  # noqa: S101
        while line := await self._process.stdout.readline():
            report = msgspec.json.decode(line, type=FoldReport)
            if not report.warning:
                return report
            log.warning("index process: %s", report.warning, extra={"session": self._session, "reason": report.reason})
        raise WorkerDied((await self._stderr).decode(errors="replace"))

    async def close(self) -> None:
        """Kill the process and its children, which ends all their requests."""
        await self._stack.aclose()
        self._stderr.cancel()


class FoldWorkers:
    """The fold processes of a server. Idle processes end after a minute, but with `keep_warm` one stays."""

    def __init__(self) -> None:
        self._idle: list[FoldWorker] = []
        self._min_idle = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        """Tasks that wait for a worker to delete old files."""

    def keep_warm(self, delay_s: float = _WARM_UP_DELAY_S) -> None:
        """Start a worker soon, and always keep one ready."""
        self._min_idle = 1
        self._run(self._refill(delay_s))

    async def acquire(self) -> FoldWorker:
        """Return a worker for one job. The caller passes it to `release` after success, else to `discard`."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            await worker.close()
        return await FoldWorker.start()

    def release(self, worker: FoldWorker, job: FoldJob) -> None:
        """Take back a worker whose job has succeeded."""
        size = sum(source.size for source in job.sources or ())
        reusable = job.sources is not None and size <= _MAX_REUSE_BYTES and worker.jobs < _MAX_JOBS
        task = self._run(self._recycle(worker, reusable=reusable))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def discard(self, worker: FoldWorker) -> None:
        await worker.close()
        self._run(self._refill())

    async def close(self) -> None:
        """End all workers; those that still delete old files get some seconds for it."""
        self._min_idle = 0
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=_MAX_FINISH_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._idle:
            await worker.close()
        self._idle.clear()

    async def _recycle(self, worker: FoldWorker, *, reusable: bool) -> None:
        """Wait until a worker has deleted old files, and keep it for a while."""
        try:
            is_ready = (await worker.report()).ready
        except WorkerDied:
            is_ready = False
        except BaseException:
            await worker.close()
            raise
        if not (is_ready and reusable):
            await self.discard(worker)
            return
        self._idle.append(worker)
        asyncio.get_running_loop().call_later(_IDLE_S, self._expire, worker, worker.jobs)

    async def _refill(self, delay_s: float = 0.0) -> None:
        await asyncio.sleep(delay_s)
        if len(self._idle) < self._min_idle:
            self._idle.insert(0, await FoldWorker.start())

    def _expire(self, worker: FoldWorker, jobs: int) -> None:
        """End a worker that has been idle since its last job, unless it is the one that is kept ready."""
        if worker in self._idle and worker.jobs == jobs and len(self._idle) > self._min_idle:
            self._idle.remove(worker)
            self._run(worker.close())

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
