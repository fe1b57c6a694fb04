"""Work that must go on: what fails is logged, counted, and begun again after a pause; and what can wait, waits."""

import asyncio
import logging
import os
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from rayhistory.collector.metrics import Metrics

log = logging.getLogger(__name__)
T = TypeVar("T")

_random = random.SystemRandom()
_NICE = 10  # a tenth of the share of a thread that does not step back


def delays(first: float = 0.5, longest: float = 60.0) -> Iterator[float]:
    """Pauses between attempts, doubling, and spread so that not all collectors come back at once."""
    pause = first
    while True:
        yield _random.uniform(pause / 2, pause)
        pause = min(longest, pause * 2)


async def keep_going(name: str, work: Callable[[], Awaitable[None]], metrics: Metrics) -> None:
    """Runs `work` until it returns; whatever it raises only delays it."""
    pauses = delays(1.0)
    while True:
        try:
            await work()
        except Exception:
            log.exception("background work failed and is begun again", extra={"task": name})
            metrics.task_failures.labels(name).inc()
            await asyncio.sleep(next(pauses))
        else:
            return


async def unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None when the event came first: the work is then cancelled."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


def step_back() -> None:
    """For a thread whose work nobody waits for: Ray does wait for the others."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICE)


async def pause(event: asyncio.Event, seconds: float) -> bool:
    """Sleeps, but not longer than until the event; True when it came."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
