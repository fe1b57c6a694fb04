"""How many folds go on at once, and that large sessions do not take the places of small ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

_SMALL = 32 << 20
"""Bytes in the store: seconds of work."""


class Places:
    """Of all places, one is left to small sessions; where there is only one, they wait like the others."""

    def __init__(self, number: int) -> None:
        self._all = asyncio.Semaphore(number)
        self._large = asyncio.Semaphore(max(1, number - 1))

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """While something of so many bytes is worked on."""
        async with AsyncExitStack() as held:
            if size > _SMALL:
                await held.enter_async_context(self._large)
            await held.enter_async_context(self._all)
            yield
