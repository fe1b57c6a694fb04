"""Listing of many keys: pages of a store are sequential, so folders are listed side by side."""

import asyncio
from itertools import chain

from rayhistory.storage.store import ObjectInfo, Store

_SEQUENTIAL_KEYS = 900
"""Fewer than a page of keys: above this, folders are listed in parallel."""
_MAX_PARALLEL_FOLDERS = 200


async def list_in_parallel(store: Store, prefix: str) -> list[ObjectInfo]:
    """List all objects below a prefix, and many of them by the folders of its folders."""
    found = []
    async for info in store.list_all(prefix):
        found.append(info)
        if len(found) == _SEQUENTIAL_KEYS:
            break
    else:
        return found
    upper = await store.list_folder(prefix)
    below = await asyncio.gather(*(_list_folders(store, f"{prefix}/{folder}") for folder in upper.folders))
    return [*upper.objects, *chain.from_iterable(below)]


async def _list_folders(store: Store, prefix: str) -> list[ObjectInfo]:
    listing = await store.list_folder(prefix)
    if len(listing.folders) > _MAX_PARALLEL_FOLDERS:  # each holds few keys
        return await _list_all(store, prefix)
    below = await asyncio.gather(*(_list_all(store, f"{prefix}/{folder}") for folder in listing.folders))
    return [*listing.objects, *chain.from_iterable(below)]


async def _list_all(store: Store, prefix: str) -> list[ObjectInfo]:
    return [info async for info in store.list_all(prefix)]
