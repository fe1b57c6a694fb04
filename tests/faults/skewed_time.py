"""Time that passes faster, or a clock that is wrong, for all of this process that is imported after this.

FAULT_SPEED and FAULT_CLOCK: see the collector that is hurt.
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


class Hasty(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout / speed if timeout else timeout)


def hurry() -> None:
    """Of the loops, only Python's own asks `time` what time it is."""
    for name in ("time", "monotonic", "time_ns", "monotonic_ns"):
        real = getattr(time, name)
        began = real()
        setattr(time, name, lambda real=real, began=began: began + type(began)((real() - began) * speed))
    uvloop.new_event_loop = lambda: asyncio.SelectorEventLoop(Hasty())


def be_wrong() -> None:
    def error() -> float:
        with suppress(OSError, ValueError):
            return float(Path(clock).read_text())
        return 0.0

    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + error()
    time.time_ns = lambda: real_ns() + int(error() * 10**9)


if speed != 1:
    hurry()
if clock:
    be_wrong()
