"""Slots limit the number of concurrent folds. Large sessions never take the last slot.

Folds for which a request waits run before all others. Apart from that, the order is that of arrival.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_MAX_SMALL_SESSION_BYTES = 32 << 20
"""Maximum size of a small session, which is folded within seconds."""


class SlotRequest:
    """One fold that waits for a slot. It can become urgent while it waits."""

    def __init__(self, *, urgent: bool = True) -> None:
        self.urgent = urgent
        self.large = False
        self.number = 0
        self.granted: asyncio.Future[None] | None = None


class Slots:
    """Fold slots, one of which is reserved for small sessions if there are at least two."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._free_for_large = max(1, slots - 1)
        self._waiting: list[SlotRequest] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def acquire(self, size_bytes: int, request: SlotRequest | None = None) -> AsyncIterator[None]:
        """Hold a slot while a session of this size is folded."""
        request = request or SlotRequest()
        request.large = size_bytes > _MAX_SMALL_SESSION_BYTES
        request.number = next(self._numbers)
        request.granted = asyncio.get_running_loop().create_future()
        self._waiting.append(request)
        self._grant()
        try:
            await request.granted
            yield
        finally:
            self._release(request)

    def _grant(self) -> None:
        """Give free slots to waiting folds, urgent folds first."""
        for request in sorted(self._waiting, key=lambda each: (not each.urgent, each.number)):
            granted = request.granted
            if granted is None or granted.done():  # cancelled
                continue
            if self._free and (not request.large or self._free_for_large):
                self._free -= 1
                self._free_for_large -= request.large
                self._waiting.remove(request)
                granted.set_result(None)

    def _release(self, request: SlotRequest) -> None:
        if request in self._waiting:  # cancelled before it got a slot
            self._waiting.remove(request)
            return
        self._free += 1
        self._free_for_large += request.large
        self._grant()
