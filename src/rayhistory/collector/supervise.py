"""Retry, cancellation and priority helpers for background work."""

import asyncio
import logging
import os
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from rayhistory.collector.telemetry import Telemetry

log = logging.getLogger(__name__)
T = TypeVar("T")

_random = random.SystemRandom()
_BACKGROUND_NICE = 10  # a tenth of the CPU share of a thread at normal priority


def backoff_delays(first: float = 0.5, max_delay: float = 60.0) -> Iterator[float]:
    """Yield exponential backoff delays, with jitter so that collectors do not retry in step."""
    delay = first
    while True:
        yield _random.uniform(delay / 2, delay)
        delay = min(max_delay, delay * 2)


async def restart_on_error(name: str, work: Callable[[], Awaitable[None]], telemetry: Telemetry) -> None:
    """Run `work` until it returns; log and count exceptions and start it again with backoff."""
    delays = backoff_delays(1.0)
    while True:
        try:
            await work()
        except Exception:
            log.exception("background task failed, restarting", extra={"task": name})
            telemetry.task_failures.labels(name).inc()
            await asyncio.sleep(next(delays))
        else:
            return


async def run_unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of `work`, or cancel it and return None when the event is set first."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


def lower_thread_priority() -> None:
    """Lower the CPU priority of the current thread, so that responses to Ray have precedence."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _BACKGROUND_NICE)


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event for at most `timeout_s` seconds; return whether it is set."""
    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
