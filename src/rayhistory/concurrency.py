"""Run many coroutines at once, with a bound, and with no request left behind after a failure."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def concurrently(calls: Iterable[Coroutine[Any, Any, T]], limit: int) -> list[T]:
    """Await coroutines, at most `limit` at a time, and return their results in order.

    The first failure cancels all others and is raised when they have ended, so that nothing runs on unobserved. The
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
