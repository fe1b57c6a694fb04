"""Slots bound the number of concurrent folds; large sessions never take the last one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

_MAX_SMALL_SESSION_BYTES = 32 << 20
"""Bytes in the store: folded within seconds."""


class Slots:
    """Fold slots, one of which is reserved for small sessions if there are at least two."""

    def __init__(self, slots: int) -> None:
        self._all = asyncio.Semaphore(slots)
        self._large = asyncio.Semaphore(max(1, slots - 1))

    @asynccontextmanager
    async def acquire(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold a slot while a session of this size is folded."""
        async with AsyncExitStack() as held:
            if size_bytes > _MAX_SMALL_SESSION_BYTES:
                await held.enter_async_context(self._large)
            await held.enter_async_context(self._all)
            yield
