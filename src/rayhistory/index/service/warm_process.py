"""A child process that is started before it is needed, because starting Python takes longer than a small job.

It reads jobs from standard input and writes results to standard output, one line each. After a small job it waits for
the next one. After a large job it is replaced, to free its memory.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from rayhistory.index.child_process import child_process

_IDLE_S = 60.0
_MAX_JOBS = 100
_MAX_ERROR_CHARS = 500


class ProcessFailed(Exception):
    """A process ended before its result. The message is the last line of its error output."""

    def __init__(self, exit_status: int, output: str) -> None:
        super().__init__((output.strip().splitlines() or ["no output"])[-1][:_MAX_ERROR_CHARS])
        self.exit_status = exit_status


class _JobProcess:
    def __init__(self, stack: AsyncExitStack, process: asyncio.subprocess.Process) -> None:
        assert process.stderr  # noqa: S101
        self._stack, self._process = stack, process
        self._stderr = asyncio.create_task(process.stderr.read())
        self.jobs = 0

    @classmethod
    async def start(cls, module: str) -> "_JobProcess":
        stack = AsyncExitStack()
        return cls(stack, await stack.enter_async_context(child_process(module)))

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def run(self, job: bytes) -> bytes:
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        self.jobs += 1
        with contextlib.suppress(ConnectionError):  # without a result, the process has failed
            self._process.stdin.write(job + b"\n")
            await self._process.stdin.drain()
        result = await self._process.stdout.readline()
        if not result:
            output = await self._stderr
            raise ProcessFailed(await self._process.wait(), output.decode(errors="replace"))
        return result

    async def close(self) -> None:
        await self._stack.aclose()
        self._stderr.cancel()


class WarmProcess:
    """Keeps one process waiting for jobs, for a minute after the last one."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._spare: _JobProcess | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._expiry: asyncio.TimerHandle | None = None

    async def run(self, job: bytes, *, reuse: bool) -> bytes:
        """Return the result line of a job.

        If `reuse` is true, keep the process for the next job. Raises ProcessFailed.
        """
        process, self._spare = self._spare, None
        if process and not process.is_alive:
            await process.close()
            process = None
        process = process or await _JobProcess.start(self._module)
        try:
            result = await process.run(job)
        except BaseException:
            await process.close()
            self._run(self._keep(None))
            raise
        if reuse and process.jobs < _MAX_JOBS:
            await self._keep(process)
        else:
            await process.close()
            self._run(self._keep(None))
        return result

    async def close(self) -> None:
        if self._expiry:
            self._expiry.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._discard()

    async def _keep(self, process: _JobProcess | None) -> None:
        """Keep this process or a new one waiting, unless another one already waits."""
        if self._expiry:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_IDLE_S, lambda: self._run(self._discard()))
        if self._spare is None and process is None:
            process = await _JobProcess.start(self._module)
        if self._spare is None:
            self._spare = process
        elif process:
            await process.close()

    async def _discard(self) -> None:
        spare, self._spare = self._spare, None
        if spare:
            await spare.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
