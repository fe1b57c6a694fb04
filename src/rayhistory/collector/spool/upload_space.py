"""Disk space for files that are being uploaded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UploadSpace:
    def __init__(self, size: int) -> None:
        self.size = size
        self._used = 0
        self._released = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[bool]:
        """Wait for disk space for the files of an upload. Yield False if they exceed the whole budget."""
        if size > self.size:
            yield False
            return
        async with self._released:
            await self._released.wait_for(lambda: self._used + size <= self.size)
            self._used += size
        try:
            yield True
        finally:
            self._used -= size
            async with self._released:
                self._released.notify_all()
