"""Keys are listed completely, whether by pages or by folders."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rayhistory.storage import ObjectInfo
from rayhistory.storage import parallel_listing as parallel_listing_module
from rayhistory.storage.local import LocalStore
from rayhistory.storage.parallel_listing import RepeatedListing, list_in_parallel


class CountingStore(LocalStore):
    """Counts the prefixes that are listed page by page."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.listed: Counter[str] = Counter()

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.listed[prefix] += 1
        return super().list_all(prefix, start_after)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    monkeypatch.setattr(parallel_listing_module, "_SEQUENTIAL_KEYS", 5)
    monkeypatch.setattr(parallel_listing_module, "_MAX_PARALLEL_FOLDERS", 3)
    return CountingStore(tmp_path)


def write(directory: Path, *keys: str) -> set[str]:
    for key in keys:
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).touch()
    return set(keys)


def listed_keys(store: CountingStore) -> set[str]:
    return {info.key for info in asyncio.run(list_in_parallel(store, "root"))}


def test_few_keys_are_listed_at_once(store: CountingStore, tmp_path: Path) -> None:
    keys = write(tmp_path, "root/a", "root/b/c", "root/b/d/e")
    assert listed_keys(store) == keys
    assert store.listed == {"root": 1}


def test_many_keys_are_listed_by_the_folders_of_folders(store: CountingStore, tmp_path: Path) -> None:
    keys = write(tmp_path, "root/a", "root/b/c", *(f"root/b/{folder}/{n}" for folder in "xyz" for n in range(4)))
    assert listed_keys(store) == keys
    assert store.listed == {"root": 1, "root/b/x": 1, "root/b/y": 1, "root/b/z": 1}


def test_many_small_folders_are_listed_at_once(store: CountingStore, tmp_path: Path) -> None:
    keys = write(tmp_path, *(f"root/b/{folder}/key" for folder in range(9)))
    assert listed_keys(store) == keys
    assert store.listed == {"root": 1, "root/b": 1}


def test_many_small_folders_are_listed_by_pages_from_the_second_time_on(store: CountingStore, tmp_path: Path) -> None:
    """A store charges per request: here one page instead of four folders."""
    keys = write(tmp_path, *(f"root/b/{folder}/{number}" for folder in "xyz" for number in range(3)))

    async def list_twice() -> list[set[str]]:
        listing = RepeatedListing(store)
        return [{info.key for info in await listing.objects("root")} for _ in range(2)]

    assert asyncio.run(list_twice()) == [keys, keys]
    assert store.listed == {"root": 2, "root/b/x": 1, "root/b/y": 1, "root/b/z": 1}


def test_few_large_folders_are_listed_in_parallel_again(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_listing_module, "_PAGE_KEYS", 2)
    keys = write(tmp_path, *(f"root/b/{folder}/{number}" for folder in "xy" for number in range(9)))

    async def list_twice() -> list[set[str]]:
        listing = RepeatedListing(store)
        return [{info.key for info in await listing.objects("root")} for _ in range(2)]

    assert asyncio.run(list_twice()) == [keys, keys]
    assert store.listed == {"root": 2, "root/b/x": 2, "root/b/y": 2}
