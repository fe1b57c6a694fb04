"""Run many coroutines concurrently, limited by number and bytes; share calls with the same result."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


async def concurrently(calls: Iterable[Coroutine[Any, Any, T]], limit: int) -> list[T]:
    """Await coroutines, at most `limit` at a time, and return their results in order.

    The first failure cancels all others. It is raised when they have ended, so that nothing continues unobserved. The
    iterable is consumed as coroutines end, so it may be a generator of any length.
    """
    results: dict[int, T] = {}
    upcoming = enumerate(calls)

    async def work() -> None:
        for number, call in upcoming:
            results[number] = await call

    workers = [asyncio.create_task(work()) for _ in range(limit)]
    try:
        await asyncio.gather(*workers)
    finally:
        await cancel_all(workers)
    return [results[number] for number in range(len(results))]


async def cancel_all(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread_to_end(work: Callable[[], T]) -> T:
    """Call a function in a thread. If the caller is cancelled, wait until the function has returned.

    A slot that the caller holds is then in use until its work has ended.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()
        raise


class Turns:
    """Slots that visitors take in turns, so that one with many requests does not delay the others.

    One visitor may hold all slots while nobody else waits.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The waiting requests of each visitor. The first visitor is next."""

    @asynccontextmanager
    async def take(self, visitor: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        if self._free:
            self._free -= 1
        else:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(visitor, deque()).append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            visitor = next(iter(self._waiting))
            requests = self._waiting.pop(visitor)
            granted = requests.popleft()
            if requests:
                self._waiting[visitor] = requests
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1


class SharedCalls(Generic[K, T]):
    """Concurrent calls with the same key share one coroutine. It continues if one of its callers is cancelled."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Future[T]] = {}

    async def call(self, key: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(make())
            running.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(running)

    def _finished(self, key: K, done: "asyncio.Future[T]") -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # reported to those who wait, if anybody still does


class ByteBudget:
    """Limits the bytes that requests hold in memory at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._released = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` more bytes fit, and hold them.

        A larger size than the limit must wait until nothing else is held.
        """
        async with self._released:
            await self._released.wait_for(lambda: not self._held or self._held + size <= self._limit)
            self._held += size
        try:
            yield
        finally:
            self._held -= size
            async with self._released:
                self._released.notify_all()
