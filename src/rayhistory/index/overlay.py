"""Local indexes for a store that is read-only. Readers see the store and the local indexes as one store."""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from pathlib import Path

from rayhistory.errors import ObjectNotFound, StoreDenied
from rayhistory.index.leases import LEASE_EXPIRES_AFTER_S
from rayhistory.sessions.keys import LEASE, MANIFEST_GLOB, PRODUCTS_FOLDER
from rayhistory.sessions.ref import is_session_name
from rayhistory.settings import Settings
from rayhistory.storage import Listing, ObjectInfo, Store
from rayhistory.storage.bulk_delete import delete_keys
from rayhistory.storage.local import LocalStore

log = logging.getLogger(__name__)


def index_store(store: Store, settings: Settings) -> Store:
    """Return a store for indexes: it writes to `store` or, if that denies writes, to the local cache."""
    return Overlay(store, Path(settings.cache_dir) / "indexes", settings.cache_size // 2)


class Overlay:
    """A store that writes to a local directory, up to a maximum size, if the real store denies writes."""

    def __init__(self, store: Store, directory: Path, budget: int) -> None:
        self._store = store
        self._directory = directory
        self._budget = budget
        self._local = LocalStore(directory, cache=True)
        self._warned = False

    @property
    def url(self) -> str:
        return self._store.url

    async def put(self, key: str, data: bytes | Path) -> None:
        try:
            await self._store.put(key, data)
        except StoreDenied as error:
            if not self._warned:
                log.warning("store is read-only, storing indexes in the local cache", extra={"reason": str(error)})
            self._warned = True
            await self._local.put(key, data)

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self._store.create(key, data)
        except StoreDenied:
            await self._local.create(key, data)
            if not key.endswith(f"/{LEASE}"):
                await asyncio.to_thread(self._make_room, (self._directory / key).parent)

    async def get(self, key: str) -> bytes:
        try:
            return await self._store.get(key)
        except ObjectNotFound:
            return await self._local.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        try:
            return await self._store.get_range(key, start, end)
        except ObjectNotFound:
            return await self._local.get_range(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        try:
            return await self._store.head(key)
        except ObjectNotFound:
            return await self._local.head(key)

    async def delete(self, key: str) -> None:
        await self._local.delete(key)
        with contextlib.suppress(StoreDenied):
            await self._store.delete(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._local.delete_many(keys)
        with contextlib.suppress(StoreDenied):
            await delete_keys(self._store, keys)

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = {info.key: info async for info in self._local.list_all(prefix, start_after)}
        found |= {info.key: info async for info in self._store.list_all(prefix, start_after)}
        for key in sorted(found):
            yield found[key]

    async def list_folder(self, prefix: str) -> Listing:
        local, remote = await self._local.list_folder(prefix), await self._store.list_folder(prefix)
        objects = {info.key: info for info in (*local.objects, *remote.objects)}
        return Listing(sorted({*local.folders, *remote.folders}), [objects[key] for key in sorted(objects)])

    async def close(self) -> None:
        await self._store.close()

    def _make_room(self, new_index: Path) -> None:
        """Remove whole indexes, oldest first, except the new one and those with a lease."""
        new_index = _session_folder(new_index)
        files = chain(self._directory.rglob("*.parquet"), self._directory.rglob(MANIFEST_GLOB))
        indexes = set(map(_session_folder, files))
        by_age = sorted((*_last_write_and_size(index), index) for index in indexes)
        free = self._budget - sum(size for _, size, _ in by_age)
        for _, size, index in by_age:
            if free >= 0:
                return
            if index != new_index and not _has_lease(index):
                for manifest in index.rglob(MANIFEST_GLOB):
                    manifest.unlink(missing_ok=True)  # without a manifest, readers see no index
                shutil.rmtree(index, ignore_errors=True)
                free += size


def _session_folder(path: Path) -> Path:
    """Return the folder of the session that an index file belongs to."""
    return next((folder for folder in (path, *path.parents) if is_session_name(folder.name)), path)


def _last_write_and_size(index: Path) -> tuple[float, int]:
    """Return the time of the last write and the total bytes. Another process may be removing files."""
    newest, size = 0.0, 0
    for path in index.rglob("*"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            newest, size = max(newest, stat.st_mtime), size + stat.st_size
    return newest, size


def _has_lease(index: Path) -> bool:
    return any(map(_is_fresh, (index / LEASE, *index.glob(f"{PRODUCTS_FOLDER}/*/{LEASE}"))))


def _is_fresh(lease: Path) -> bool:
    try:
        return abs(time.time() - lease.stat().st_mtime) < LEASE_EXPIRES_AFTER_S
    except OSError:
        return False
