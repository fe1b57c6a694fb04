"""Run many coroutines concurrently, limited by number and bytes. After a failure, no request is left running."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

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
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[number] for number in range(len(results))]


class ByteBudget:
    """The bytes that requests may hold in memory at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._released = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` more bytes fit, and hold them. If `size` exceeds the limit, it is held alone."""
        async with self._released:
            await self._released.wait_for(lambda: not self._held or self._held + size <= self._limit)
            self._held += size
        try:
            yield
        finally:
            self._held -= size
            async with self._released:
                self._released.notify_all()
