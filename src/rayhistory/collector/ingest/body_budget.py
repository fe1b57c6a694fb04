"""Memory budget for request bodies that are being received or stored.

A body counts from its first byte until its response. When the budget is used up, the collector continues to read only
the oldest body. The others wait until memory is free. Clients that send too slowly while others wait are disconnected.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rayhistory.collector.supervise import wait_for_event

_SLOW_SENDER_TIMEOUT_S = 3.0  # Ray's own timeout for a POST
_RECHECK_INTERVAL_S = 0.25


class IncomingBody:
    """One request body that is being received."""

    def __init__(self, timeout_s: float) -> None:
        self.timer = asyncio.timeout(timeout_s)
        """A context that raises TimeoutError if the body takes too long. Its time begins when it is created."""
        self.reserved = 0
        """Number of bytes that this body has reserved in the budget."""
        self.complete = False
        self.waiting = False
        """True while the body is not read because the budget is used up."""
        self.blocking_since: float | None = None
        """Time when other bodies began to wait for this one."""


class BodyBudget:
    """Limits the bytes of all bodies together to `max_bytes`. If they are used up, only the oldest body gets more."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reserved = 0
        self._bodies: dict[IncomingBody, None] = {}
        self._changed = asyncio.Event()

    @contextmanager
    def body(self, timeout_s: float) -> Iterator[IncomingBody]:
        """Track one body, and release its memory on exit of the context."""
        body = IncomingBody(timeout_s)
        try:
            yield body
        finally:
            self._bodies.pop(body, None)
            self._reserved -= body.reserved
            self._changed.set()

    async def reserve(self, body: IncomingBody, size: int) -> None:
        """Wait until the budget has room for `size` more bytes. The timeout of the body pauses during the wait."""
        self._bodies[body] = None
        if not self._has_room(body, size):
            now = asyncio.get_running_loop().time
            left = (body.timer.when() or now()) - now()
            body.timer.reschedule(None)
            body.waiting = True
            while not self._has_room(body, size):
                self._cut_off_slow_senders(now())
                self._changed.clear()
                await wait_for_event(self._changed, _RECHECK_INTERVAL_S)
            body.waiting = False
            body.timer.reschedule(now() + left)
        body.reserved += size
        self._reserved += size

    def _has_room(self, body: IncomingBody, size: int) -> bool:
        return self._reserved + size <= self._max_bytes or body is next(iter(self._bodies))

    def _cut_off_slow_senders(self, now: float) -> None:
        for body in self._bodies:
            if body.waiting or body.complete:
                body.blocking_since = None
                continue
            body.blocking_since = body.blocking_since or now
            if now - body.blocking_since > _SLOW_SENDER_TIMEOUT_S and not body.timer.expired():
                body.timer.reschedule(now)
