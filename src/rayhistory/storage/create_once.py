"""Conditional create that works even if a response is lost.

Each writer stores a random signature with the object. If the outcome is unclear (a reset, a timeout, or a retry that
finds the key taken), it reads the signature to find out who created the object.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from rayhistory.errors import BucketNotFound, ObjectExists, ObjectNotFound, StoreUnavailable

WRITER = "writer"
"""The metadata field of the object that holds the signature."""

_ATTEMPTS = 4


async def create_once(
    key: str, create: Callable[[str], Awaitable[None]], writer_of: Callable[[], Awaitable[str]]
) -> None:
    """Create the object; raise ObjectExists if another writer created it."""
    signature = secrets.token_hex(16)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await create(signature)
            return
        except BucketNotFound:
            raise
        except (ObjectExists, StoreUnavailable) as unclear:
            try:
                winner = await writer_of()
            except ObjectNotFound:
                if attempt == _ATTEMPTS:
                    raise unclear from None
                await asyncio.sleep(0.2 * attempt)
                continue
            if winner != signature:
                raise ObjectExists(f"object {key} already exists") from None
            return
