"""A child process that is started before it is needed: starting Python takes longer than a small job."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rayhistory.index.child_process import child_process

_IDLE_S = 60.0

_Started = tuple[AsyncExitStack, asyncio.subprocess.Process]


class WarmProcess:
    """Keeps one process waiting for its input, for a minute after the last job."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._spare: _Started | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._expiry: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Yield a process for one job; it ends with the block."""
        spare, self._spare = self._spare, None
        if spare and spare[1].returncode is not None:
            await spare[0].aclose()
            spare = None
        stack, process = spare or await self._start()
        async with stack:
            yield process
        self._run(self._prepare())

    async def close(self) -> None:
        if self._expiry:
            self._expiry.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._discard()

    async def _start(self) -> _Started:
        stack = AsyncExitStack()
        return stack, await stack.enter_async_context(child_process(self._module))

    async def _prepare(self) -> None:
        if self._expiry:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_IDLE_S, lambda: self._run(self._discard()))
        if self._spare is None:
            started = await self._start()
            if self._spare is not None:  # another job was done meanwhile
                await started[0].aclose()
            else:
                self._spare = started

    async def _discard(self) -> None:
        spare, self._spare = self._spare, None
        if spare:
            await spare[0].aclose()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
