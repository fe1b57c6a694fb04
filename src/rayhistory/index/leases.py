"""Leases tell other servers on the same store that the tables or a product of a session are being built.

A lease is a hint, never a lock. It counts only while it is fresh. If two servers fold the same session, nothing breaks,
because only one can create the manifest. The lease only avoids double work.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator

from rayhistory.errors import ObjectExists, ObjectNotFound, StoreError
from rayhistory.storage import Store

log = logging.getLogger(__name__)

LEASE_EXPIRES_AFTER_S = 60.0
_RENEW_INTERVAL_S = 20.0


class Leases:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def is_held(self, key: str) -> bool:
        """Return whether another process seems to hold the lease."""
        try:
            info = await self._store.head(key)
        except ObjectNotFound:
            return False
        return abs(time.time() - info.modified) < LEASE_EXPIRES_AFTER_S

    @contextlib.asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[bool]:
        """Take the lease, renew it during the context, then delete it. Yield False if another process has it."""
        token = secrets.token_bytes(16)
        done = asyncio.Event()
        renewal: asyncio.Task[None] | None = None
        try:
            taken = await self._take(key, token)
            if taken:
                renewal = asyncio.create_task(self._renew(key, token, done))
            yield taken
        finally:
            done.set()
            if renewal:
                await asyncio.wait([renewal])  # a write that is still under way would recreate the lease
            with contextlib.suppress(StoreError):
                if await self._store.get_range(key, 0, len(token) + 1) == token:
                    await self._store.delete(key)

    async def _take(self, key: str, token: bytes) -> bool:
        """Create the lease, or replace an expired one. If the store fails, do the work without a lease."""
        try:
            await self._store.create(key, token)
        except ObjectExists:
            if await self.is_held(key):
                return False
            await self._store.put(key, token)
            return await self._store.get_range(key, 0, len(token) + 1) == token
        except StoreError as error:
            log.warning(
                "cannot write the lease for a build, another server may build the same index or product",
                extra={"reason": str(error)},
            )
        return True

    async def _renew(self, key: str, token: bytes, done: asyncio.Event) -> None:
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _RENEW_INTERVAL_S)
                return
            try:
                await self._store.put(key, token)
            except StoreError as error:
                log.warning(
                    "cannot renew the lease for a build, another server may build the same index or product",
                    extra={"reason": str(error)},
                )
