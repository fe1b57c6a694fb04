"""Indexes of a store that refuses writes live in the local cache; readers see both places as one."""

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from rayhistory.errors import ObjectNotFound, StoreDenied
from rayhistory.settings import Settings
from rayhistory.storage import Listing, ObjectInfo, Store
from rayhistory.storage.local import LocalStore

log = logging.getLogger(__name__)


def index_store(store: Store, settings: Settings) -> Store:
    """Where the indexes of a store's sessions are."""
    return Overlay(store, Path(settings.cache_dir) / "indexes")


class Overlay:
    """A store whose writes go to a local directory when the store itself denies them."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._beside = LocalStore(directory, cache=True)

    @property
    def url(self) -> str:
        return self._store.url

    async def put(self, key: str, data: bytes | Path) -> None:
        try:
            await self._store.put(key, data)
        except StoreDenied as error:
            log.warning("the store refuses writes: the index is kept in the local cache", extra={"reason": str(error)})
            await self._beside.put(key, data)

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self._store.create(key, data)
        except StoreDenied:
            await self._beside.create(key, data)

    async def get(self, key: str) -> bytes:
        try:
            return await self._store.get(key)
        except ObjectNotFound:
            return await self._beside.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        try:
            return await self._store.get_range(key, start, end)
        except ObjectNotFound:
            return await self._beside.get_range(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        try:
            return await self._store.head(key)
        except ObjectNotFound:
            return await self._beside.head(key)

    async def delete(self, key: str) -> None:
        await self._beside.delete(key)
        with contextlib.suppress(StoreDenied):
            await self._store.delete(key)

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = {info.key: info async for info in self._beside.list_all(prefix, start_after)}
        found |= {info.key: info async for info in self._store.list_all(prefix, start_after)}
        for key in sorted(found):
            yield found[key]

    async def list_folder(self, prefix: str) -> Listing:
        here, there = await self._beside.list_folder(prefix), await self._store.list_folder(prefix)
        objects = {info.key: info for info in (*here.objects, *there.objects)}
        return Listing(sorted({*here.folders, *there.folders}), [objects[key] for key in sorted(objects)])

    async def close(self) -> None:
        await self._store.close()
