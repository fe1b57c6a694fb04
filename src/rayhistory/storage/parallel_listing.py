"""List many keys in parallel by folder, because the pages of one listing are sequential."""

import asyncio
import logging
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from rayhistory.concurrency import concurrently
from rayhistory.errors import InvalidKeyInStore
from rayhistory.storage.store import ObjectInfo, Store

log = logging.getLogger(__name__)

_SEQUENTIAL_KEYS = 900
"""Number of keys in a listing above which folders are listed in parallel."""
_MAX_PARALLEL_FOLDERS = 200
_PAGE_KEYS = 1000
_MAX_SEQUENTIAL_PAGES = 50
"""Maximum number of pages of a sequential listing, which takes some seconds."""
_CONCURRENT_FOLDERS = 16
_MAX_DEPTH = 4
"""Depth of the folders that are listed one by one, to find those with invalid keys: enough for that of a session."""


class RepeatedListing:
    """Lists prefixes repeatedly: the first time fast, by folder, and later with as few requests as possible.

    Stores charge per request, and a folder with three keys costs as much as a page of a thousand.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_pages: dict[str, bool] = {}
        self._hidden: set[str] = set()
        """Folders that are logged because they could not be listed."""

    async def objects(self, prefix: str) -> list[ObjectInfo]:
        list_objects = _list_all if self._by_pages.get(prefix) else list_in_parallel
        try:
            found = await list_objects(self._store, prefix)
        except InvalidKeyInStore:
            readable = await list_around_invalid_keys(self._store, prefix)
            for folder in readable.hidden.keys() - self._hidden:
                fields = {"key": folder, "reason": readable.hidden[folder]}
                log.warning("found an object with an invalid key, hiding its folder", extra=fields)
            self._hidden |= readable.hidden.keys()
            return readable.objects
        self._by_pages[prefix] = _pages_are_fewer(prefix, (info.key for info in found))
        return found


def _pages_are_fewer(prefix: str, keys: Iterable[str]) -> bool:
    """Return whether a listing by pages needs fewer requests than a listing by folders, and not too many."""
    parts = [key.removeprefix(f"{prefix}/").split("/", 2) for key in keys]
    upper = {part[0] for part in parts if len(part) > 1}
    lower = {(part[0], part[1]) for part in parts if len(part) > 2}
    pages = len(parts) // _PAGE_KEYS + 1
    return pages <= min(1 + len(upper) + len(lower), _MAX_SEQUENTIAL_PAGES)


class ReadableListing(NamedTuple):
    objects: list[ObjectInfo]
    hidden: dict[str, str]
    """The reasons why some folders could not be listed."""


async def list_around_invalid_keys(store: Store, prefix: str) -> ReadableListing:
    """List all objects below a prefix, except those in folders that cannot be listed because of an invalid key.

    So a writer of one namespace cannot hide the sessions of the others. Raise InvalidKeyInStore if `prefix` itself has
    such a key.
    """
    return await _list_readable_folders(store, prefix, _MAX_DEPTH)


async def _list_readable_folders(store: Store, prefix: str, depth: int) -> ReadableListing:
    listing = await store.list_folder(prefix)
    calls = (_list_readable(store, f"{prefix}/{folder}", depth) for folder in listing.folders)
    found = ReadableListing(listing.objects, {})
    for each in await concurrently(calls, _CONCURRENT_FOLDERS):
        found.objects.extend(each.objects)
        found.hidden.update(each.hidden)
    return found


async def _list_readable(store: Store, prefix: str, depth: int) -> ReadableListing:
    try:
        try:
            return ReadableListing(await list_in_parallel(store, prefix), {})
        except InvalidKeyInStore:
            if not depth:
                raise
            return await _list_readable_folders(store, prefix, depth - 1)
    except InvalidKeyInStore as error:
        return ReadableListing([], {prefix: str(error)})


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
