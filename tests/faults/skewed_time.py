"""Faster time, or a wrong clock, for every module that this process imports later.

FAULT_SPEED and FAULT_CLOCK are described in `faulty_collector`.
"""

import asyncio
import os
import selectors
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

speed = float(os.environ.get("FAULT_SPEED", "1"))
clock = os.environ.get("FAULT_CLOCK", "")


class FastSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout / speed if timeout else timeout)


def speed_up() -> None:
    """Make time pass faster. Needs Python's event loop: uvloop does not read the `time` module."""
    for name in ("time", "monotonic", "time_ns", "monotonic_ns"):
        real = getattr(time, name)
        start = real()
        setattr(time, name, lambda real=real, start=start: start + type(start)((real() - start) * speed))
    setattr(uvloop, "new_event_loop", lambda: asyncio.SelectorEventLoop(FastSelector()))  # noqa: B010 - of another type


def skew_clock() -> None:
    def offset() -> float:
        with suppress(OSError, ValueError):
            return float(Path(clock).read_text())
        return 0.0

    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + offset()
    time.time_ns = lambda: real_ns() + int(offset() * 10**9)


if speed != 1:
    speed_up()
if clock:
    skew_clock()
