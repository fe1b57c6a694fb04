"""A conditional create whose answer got lost is not a failure, and not a success either: who knows is the object.

Each writer signs the object that it creates. After an unclear outcome (a reset, a timeout, a retry that finds the key
taken) it looks whose signature is there.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from rayhistory.errors import BucketNotFound, ObjectExists, ObjectNotFound, StoreUnavailable

WRITER = "writer"
"""The name under which a store keeps the signature, among the object's own metadata."""

_ATTEMPTS = 4


async def create_once(
    key: str, create: Callable[[str], Awaitable[None]], writer_of: Callable[[], Awaitable[str]]
) -> None:
    """Returns if this writer's object is there; raises ObjectExists if it is another's."""
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
                raise ObjectExists(f"object {key} exists") from None
            return
