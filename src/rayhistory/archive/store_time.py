"""The time of the store's own clock."""

import logging
import secrets
import time

from rayhistory.errors import StoreError
from rayhistory.sessions import Layout
from rayhistory.storage import Store

log = logging.getLogger(__name__)


async def read_store_time(store: Store, layout: Layout) -> float:
    """Write a test object and return its modification time. Without write permission, return the local time."""
    key = f"{layout.scratch_prefix()}/{secrets.token_hex(8)}"
    try:
        await store.put(key, b"")
    except StoreError as error:
        log.warning(
            "cannot get the store's time because a test write failed, using the local clock",
            extra={"reason": str(error)},
        )
        return time.time()
    try:
        return (await store.head(key)).modified
    finally:
        await store.delete(key)
