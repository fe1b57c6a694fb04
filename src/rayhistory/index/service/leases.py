"""Who is folding a session, so that several servers on one store do not all do the same work.

A claim is a hint and never a lock: it counts only while it is fresh, and two who fold at once do no harm.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator

from rayhistory.errors import ObjectNotFound, StoreError
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage import Store

log = logging.getLogger(__name__)

STALE = 60.0
_REFRESH = 20.0


class Claims:
    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    async def is_held(self, ref: SessionRef) -> bool:
        """Whether somebody is folding the session, by all appearances."""
        try:
            info = await self._store.head(self._layout.claim_key(ref))
        except ObjectNotFound:
            return False
        return abs(time.time() - info.modified) < STALE

    @contextlib.asynccontextmanager
    async def hold(self, ref: SessionRef) -> AsyncIterator[None]:
        key = self._layout.claim_key(ref)
        ours = secrets.token_bytes(16)
        over = asyncio.Event()
        refreshing = asyncio.create_task(self._refresh(key, ours, over))
        try:
            yield
        finally:
            over.set()
            await asyncio.wait([refreshing])  # a claim that is being written would come after its end
            with contextlib.suppress(StoreError):
                if await self._store.get_range(key, 0, len(ours) + 1) == ours:
                    await self._store.delete(key)

    async def _refresh(self, key: str, ours: bytes, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                await self._store.put(key, ours)
            except StoreError as error:
                log.warning("a claim could not be written", extra={"reason": str(error)})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _REFRESH)
