"""Bulk deletes hold few keys in memory, and work with stores that have none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rayhistory.errors import StoreError, StoreUnavailable
from rayhistory.storage.bulk_delete import BULK_KEYS, BulkDelete, delete_many
from rayhistory.storage.local import LocalStore


class BulkStore(LocalStore):
    """Counts requests, and keys that were listed and not yet deleted."""

    listed = deleted = most = 0
    requests: list[int]

    async def keys(self, count: int) -> AsyncIterator[str]:
        for number in range(count):
            self.listed += 1
            self.most = max(self.most, self.listed - self.deleted)
            yield f"a/{number}"

    async def delete_many(self, keys: Sequence[str]) -> None:
        self.requests.append(len(keys))
        await asyncio.sleep(0)
        self.deleted += len(keys)


class PlainStore:
    """A backend of another package, from before bulk deletes."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    async def delete(self, key: str) -> None:
        if key == "refused":
            raise StoreUnavailable("try again")
        await self._store.delete(key)


@pytest.mark.slow
def test_million_objects_are_deleted_in_bounded_memory(tmp_path: Path) -> None:
    store = BulkStore(tmp_path)
    store.requests = []
    assert asyncio.run(delete_many(store, store.keys(1_000_000))) == 1_000_000
    assert set(store.requests) == {BULK_KEYS}
    assert store.most <= 6 * BULK_KEYS


def test_store_without_bulk_deletes_deletes_one_by_one(tmp_path: Path) -> None:
    async def work() -> None:
        local = LocalStore(tmp_path)
        store = PlainStore(local)
        assert not isinstance(store, BulkDelete)
        for name in "abc":
            await local.put(f"p/{name}", b"")
        assert await delete_many(store, _each("p/a", "p/c")) == 2  # type: ignore[arg-type]
        assert [info.key async for info in local.list_all("p")] == ["p/b"]
        with pytest.raises(StoreError, match="try again"):
            await delete_many(store, _each("p/b", "refused"))  # type: ignore[arg-type]

    asyncio.run(work())


async def _each(*keys: str) -> AsyncIterator[str]:
    for key in keys:
        yield key
