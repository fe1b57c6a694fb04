"""Indexes of a store that refuses writes live in the local cache; readers see both places as one."""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

from rayhistory.errors import ObjectNotFound, StoreDenied
from rayhistory.index.claims import STALE
from rayhistory.layout.keys import CLAIM
from rayhistory.settings import Settings
from rayhistory.storage import Listing, ObjectInfo, Store
from rayhistory.storage.local import LocalStore

log = logging.getLogger(__name__)


def index_store(store: Store, settings: Settings) -> Store:
    """Where the indexes of a store's sessions are."""
    return Overlay(store, Path(settings.cache_dir) / "indexes", settings.cache_size // 2)


class Overlay:
    """A store whose writes go to a local directory, within a budget of bytes, when the store itself denies them."""

    def __init__(self, store: Store, directory: Path, budget: int) -> None:
        self._store = store
        self._directory = directory
        self._budget = budget
        self._beside = LocalStore(directory, cache=True)
        self._refused = False

    @property
    def url(self) -> str:
        return self._store.url

    async def put(self, key: str, data: bytes | Path) -> None:
        try:
            await self._store.put(key, data)
        except StoreDenied as error:
            if not self._refused:
                log.warning(
                    "the store refuses writes: indexes are kept in the local cache", extra={"reason": str(error)}
                )
            self._refused = True
            await self._beside.put(key, data)

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self._store.create(key, data)
        except StoreDenied:
            await self._beside.create(key, data)
            await asyncio.to_thread(self._make_room, (self._directory / key).parent)

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

    def _make_room(self, just_made: Path) -> None:
        """Removes whole indexes, the oldest first, but neither the one just made nor one that is being made."""
        indexes = {path.parent.parent for path in self._directory.rglob("*.parquet")}
        known = sorted((*_age_and_size(index), index) for index in indexes)
        room = self._budget - sum(size for _, size, _ in known)
        for _, size, index in known:
            if room >= 0:
                return
            if index != just_made and not _is_claimed(index):
                for manifest in index.glob("manifest-*"):
                    manifest.unlink(missing_ok=True)  # an index goes as it came: all at once
                shutil.rmtree(index, ignore_errors=True)
                room += size


def _age_and_size(index: Path) -> tuple[float, int]:
    """When something was written last, and how many bytes there are; another process may be removing them."""
    newest, size = 0.0, 0
    for path in index.rglob("*"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            newest, size = max(newest, stat.st_mtime), size + stat.st_size
    return newest, size


def _is_claimed(index: Path) -> bool:
    try:
        return abs(time.time() - (index / CLAIM).stat().st_mtime) < STALE
    except OSError:
        return False
