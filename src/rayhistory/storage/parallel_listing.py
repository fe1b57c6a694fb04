"""List many keys in parallel by folder, because the pages of one listing are sequential."""

import asyncio
from collections.abc import Iterable
from itertools import chain

from rayhistory.storage.store import ObjectInfo, Store

_SEQUENTIAL_KEYS = 900
"""Number of keys in a listing above which folders are listed in parallel."""
_MAX_PARALLEL_FOLDERS = 200
_PAGE_KEYS = 1000
_MAX_SEQUENTIAL_PAGES = 50
"""Maximum number of pages of a sequential listing, which takes some seconds."""


class RepeatedListing:
    """Lists prefixes repeatedly: the first time fast, by folder, and later with as few requests as possible.

    Stores charge per request, and a folder with three keys costs as much as a page of a thousand.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_pages: dict[str, bool] = {}

    async def objects(self, prefix: str) -> list[ObjectInfo]:
        list_objects = _list_all if self._by_pages.get(prefix) else list_in_parallel
        found = await list_objects(self._store, prefix)
        self._by_pages[prefix] = _pages_are_fewer(prefix, (info.key for info in found))
        return found


def _pages_are_fewer(prefix: str, keys: Iterable[str]) -> bool:
    """Return whether a listing by pages needs fewer requests than a listing by folders, and not too many."""
    parts = [key.removeprefix(f"{prefix}/").split("/", 2) for key in keys]
    upper = {part[0] for part in parts if len(part) > 1}
    lower = {(part[0], part[1]) for part in parts if len(part) > 2}
    pages = len(parts) // _PAGE_KEYS + 1
    return pages <= min(1 + len(upper) + len(lower), _MAX_SEQUENTIAL_PAGES)


async def list_in_parallel(store: Store, prefix: str) -> list[ObjectInfo]:
    """List all objects below a prefix, in parallel by the folders two levels below it."""
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
