"""Leases tell other servers on the same store that the tables or a product of a session are being built.

A lease is a hint, never a lock: it counts only while it is fresh, and two concurrent folds of one session are harmless,
because a manifest is published by conditional create.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator

from rayhistory.errors import ObjectNotFound, StoreError
from rayhistory.storage import Store

log = logging.getLogger(__name__)

LEASE_EXPIRES_AFTER_S = 60.0
_RENEW_INTERVAL_S = 20.0


class Leases:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def is_held(self, key: str) -> bool:
        """Return whether another process seems to hold the lease with this key."""
        try:
            info = await self._store.head(key)
        except ObjectNotFound:
            return False
        return abs(time.time() - info.modified) < LEASE_EXPIRES_AFTER_S

    @contextlib.asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Write a lease, renew it while the block runs, then delete it."""
        token = secrets.token_bytes(16)
        done = asyncio.Event()
        renewal = asyncio.create_task(self._renew(key, token, done))
        try:
            yield
        finally:
            done.set()
            await asyncio.wait([renewal])  # a write that is still under way would recreate the lease
            with contextlib.suppress(StoreError):
                if await self._store.get_range(key, 0, len(token) + 1) == token:
                    await self._store.delete(key)

    async def _renew(self, key: str, token: bytes, done: asyncio.Event) -> None:
        while not done.is_set():
            try:
                await self._store.put(key, token)
            except StoreError as error:
                log.warning("lease not written, other servers may do the same work", extra={"reason": str(error)})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _RENEW_INTERVAL_S)
