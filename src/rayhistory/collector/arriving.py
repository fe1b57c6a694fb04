"""Large bodies on their way in: how much of all of them may be in memory, and who gives way.

There is room for a few at once. When it is taken, only the one that was first goes on, and the others are read no
further until there is room again; but nobody waits long for a sender that is slow.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rayhistory.collector.supervise import pause

_LONGEST_WAIT_FOR_ONE = 3.0  # as long as Ray waits for an answer
_LOOK = 0.25


class Body:
    def __init__(self, seconds: float) -> None:
        self.timer = asyncio.timeout(seconds)
        """To be entered at once: what it raises is the end of waiting for the body."""
        self.size = 0
        """Bytes that are counted."""
        self.is_here = False
        """The whole of it."""
        self.awaited_since: float | None = None
        """Others have been waiting for its end since then."""


class Arriving:
    """`most` is the number of bytes of all bodies but the first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._bodies: dict[Body, None] = {}
        self._news = asyncio.Event()

    @contextmanager
    def body(self, seconds: float) -> Iterator[Body]:
        """One that begins to arrive; at the end nothing of it is in memory any more."""
        body = Body(seconds)
        try:
            yield body
        finally:
            self._bodies.pop(body, None)
            self._held -= body.size
            self._news.set()

    async def hold(self, body: Body, size: int) -> None:
        """Returns when there is room for so much more of a body. The time until then is not the sender's."""
        self._bodies[body] = None
        if not self._has_room(body, size):
            now = asyncio.get_running_loop().time
            left = (body.timer.when() or now()) - now()
            body.timer.reschedule(None)
            while not self._has_room(body, size):
                self._hurry(next(iter(self._bodies)), now())
                self._news.clear()
                await pause(self._news, _LOOK)
            body.timer.reschedule(now() + left)
        body.size += size
        self._held += size

    def _has_room(self, body: Body, size: int) -> bool:
        return self._held + size <= self._most or body is next(iter(self._bodies))

    def _hurry(self, first: Body, now: float) -> None:
        first.awaited_since = first.awaited_since or now
        late = now - first.awaited_since > _LONGEST_WAIT_FOR_ONE
        if late and not first.is_here and not first.timer.expired():
            first.timer.reschedule(now)
