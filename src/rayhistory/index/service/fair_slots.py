"""Slots for expensive work, shared fairly: no visitor or session can occupy all of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from rayhistory.errors import RateLimited

MAX_WAITING_PER_VISITOR = 4
_SLOTS = 2
_RETRY_AFTER_S = 2.0


class FairSlots:
    """Two slots, held by different visitors and for different sessions. Folds have slots of their own."""

    def __init__(self, work: str, max_waiting: int = MAX_WAITING_PER_VISITOR) -> None:
        self._work = work
        self._max_waiting = max_waiting
        self._all = asyncio.Semaphore(_SLOTS)
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def acquire(self, visitor: str, session: str = "") -> AsyncIterator[None]:
        """Hold a slot. Raise RateLimited if too many requests of the visitor wait for one.

        Without `session`, two visitors can hold slots for the same session.
        """
        if self._users[f"visitor {visitor}"] > self._max_waiting:
            raise RateLimited(f"you have too many {self._work} waiting: retry in a few seconds", _RETRY_AFTER_S)
        per_session = self._only_one(f"session {session}") if session else nullcontext()
        async with self._only_one(f"visitor {visitor}"), per_session, self._all:
            yield

    @asynccontextmanager
    async def _only_one(self, name: str) -> AsyncIterator[None]:
        self._users[name] += 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
                self._locks.pop(name, None)
