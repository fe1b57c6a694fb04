"""What every store must do, whichever backend it is."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.errors import Misconfigured, ObjectExists, ObjectNotFound, StoreDenied, StoreError
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Store, open_store

Work = Callable[[Store], Awaitable[None]]


@pytest.fixture(params=["local"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Work], None]:
    """Runs a coroutine function with an empty store of each backend."""

    def run_with_store(work: Work) -> None:
        async def whole() -> None:
            store = open_local(tmp_path)
            await work(store)
            await store.close()

        asyncio.run(whole())

    return run_with_store


def open_local(directory: Path) -> Store:
    settings, _ = resolve(SERVER, {}, {"STORAGE_BACKEND": "local", "LOCAL_STORAGE_DIR": str(directory)})
    return open_store(settings, writable=True)


def test_what_was_put_can_be_read_whole_and_in_part(run: Callable[[Work], None], tmp_path: Path) -> None:
    async def work(store: Store) -> None:
        await store.put("a/b", b"hello world")
        assert await store.get("a/b") == b"hello world"
        assert await store.get_range("a/b", 6, 9) == b"wor"
        assert await store.get_range("a/b", 6, 99) == b"world"
        assert await store.get_range("a/b", 50, 60) == b""
        assert (await store.head("a/b")).size == 11
        await store.put("a/b", b"again")
        assert await store.get("a/b") == b"again"
        source = tmp_path / "source"
        source.write_bytes(b"from a file")
        await store.put("a/c", source)
        assert await store.get("a/c") == b"from a file"

    run(work)


def test_a_create_succeeds_once_however_many_try(run: Callable[[Work], None]) -> None:
    async def work(store: Store) -> None:
        async def attempt(number: int) -> bool:
            try:
                await store.create("one", str(number).encode())
            except ObjectExists:
                return False
            return True

        outcomes = await asyncio.gather(*(attempt(number) for number in range(8)))
        assert sum(outcomes) == 1
        assert await store.get("one") == str(outcomes.index(True)).encode()

    run(work)


def test_what_is_not_there_is_not_found(run: Callable[[Work], None]) -> None:
    async def work(store: Store) -> None:
        await store.put("folder/object", b"")
        for key in ("nothing", "folder", "folder/object/below"):
            for call in (store.get(key), store.head(key), store.get_range(key, 0, 1)):
                with pytest.raises(ObjectNotFound):
                    await call
        await store.delete("nothing")
        await store.delete("folder/object")
        with pytest.raises(ObjectNotFound):
            await store.get("folder/object")

    run(work)


def test_listings_are_in_order_of_keys_and_can_start_anywhere(run: Callable[[Work], None]) -> None:
    async def work(store: Store) -> None:
        keys = ["p/a.b", "p/a/b", "p/a/c/d", "p/b", "p-other/x", "q?detail=1&limit=2"]
        for key in keys:
            await store.put(key, key.encode())
        assert [info.key async for info in store.list_all("p")] == ["p/a.b", "p/a/b", "p/a/c/d", "p/b"]
        assert [info.key async for info in store.list_all("p", start_after="p/a/b")] == ["p/a/c/d", "p/b"]
        assert [info.key async for info in store.list_all("nothing")] == []
        assert {info.key async for info in store.list_all("")} == set(keys)
        listing = await store.list_folder("p")
        assert listing.folders == ["a"]
        assert [info.key for info in listing.objects] == ["p/a.b", "p/b"]
        assert [info.size for info in listing.objects] == [5, 3]

    run(work)


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/\0"])
def test_no_key_leads_out_of_the_store(run: Callable[[Work], None], key: str) -> None:
    async def work(store: Store) -> None:
        with pytest.raises(StoreError, match="not a key"):
            await store.put(key, b"")

    run(work)


def test_half_written_objects_are_not_listed(tmp_path: Path) -> None:
    """A crash in the middle of a put leaves nothing that a reader sees."""

    async def work() -> None:
        store = open_local(tmp_path)
        await store.put("a/b", b"1")
        (tmp_path / "a/.half-written-0123").write_bytes(b"torn")
        assert [info.key async for info in store.list_all("")] == ["a/b"]

    asyncio.run(work())


def test_a_directory_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    """With the variable's name, before anything else happens."""
    (tmp_path / "file").write_bytes(b"")
    for directory, reason in (("missing", "no such directory"), ("file", "no such directory")):
        settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(tmp_path / directory)})
        with pytest.raises(Misconfigured, match=f"LOCAL_STORAGE_DIR=.*{reason}"):
            open_store(settings)
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(tmp_path / "file/below")})
    with pytest.raises(Misconfigured, match="LOCAL_STORAGE_DIR=.*cannot be made"):
        open_store(settings, writable=True)


def test_an_unknown_backend_is_answered_with_the_known_ones() -> None:
    settings, _ = resolve(SERVER, {}, {"STORAGE_BACKEND": "tape"})
    with pytest.raises(Misconfigured, match="unknown storage backend 'tape': installed are .*local"):
        open_store(settings)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_directory_without_permission_is_denied_and_not_empty(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_local(tmp_path)
        await store.put("closed/object", b"")
        (tmp_path / "closed").chmod(0)
        with pytest.raises(StoreDenied):
            await store.list_folder("closed")

    asyncio.run(work())
    (tmp_path / "closed").chmod(0o700)
