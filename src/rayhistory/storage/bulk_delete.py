"""Delete many objects: in bulk where the backend can, in bounded memory for any number of keys."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from rayhistory.concurrency import cancel_all
from rayhistory.storage.store import Store

BULK_KEYS = 1000
"""The maximum number of keys that S3 and OSS delete in one request."""
_BULK_REQUESTS = 4
_SINGLE_REQUESTS = 16


@runtime_checkable
class BulkDelete(Protocol):
    """Optional method of a store, besides those of `Store`."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove up to 1,000 objects. Missing objects are not an error. If this raises, some objects may remain."""


async def delete_many(store: Store, keys: AsyncIterable[str]) -> int:
    """Delete objects while their keys are still being listed. Return their number. Call it again to resume."""
    deleted, running = 0, set[asyncio.Task[None]]()
    try:
        async for chunk in _chunks(keys):
            if len(running) >= _BULK_REQUESTS:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            running.add(asyncio.create_task(_delete_chunk(store, chunk)))
            deleted += len(chunk)
        await asyncio.gather(*running)
    finally:
        await cancel_all(running)
    return deleted


async def delete_keys(store: Store, keys: Sequence[str]) -> None:
    """Delete objects whose keys are known."""

    async def each() -> AsyncIterator[str]:
        for key in keys:
            yield key

    await delete_many(store, each())


async def _delete_chunk(store: Store, keys: list[str]) -> None:
    if isinstance(store, BulkDelete):
        await store.delete_many(keys)
    else:
        await delete_one_by_one(store, keys)


async def delete_one_by_one(store: Store, keys: Sequence[str]) -> None:
    """Delete objects with one request each, several at a time."""
    remaining = iter(keys)

    async def worker() -> None:
        for key in remaining:
            await store.delete(key)

    workers = [asyncio.create_task(worker()) for _ in range(min(_SINGLE_REQUESTS, len(keys)))]
    try:
        await asyncio.gather(*workers)
    finally:
        await cancel_all(workers)


async def _chunks(keys: AsyncIterable[str]) -> AsyncIterable[list[str]]:
    chunk: list[str] = []
    async for key in keys:
        chunk.append(key)
        if len(chunk) == BULK_KEYS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
