"""What every store must do, whichever backend it is: a test suite for the authors of backends.

    from rayhistory.storage.contract import StoreContract

    class TestTapeStore(StoreContract):
        def new_store(self) -> Store:
            return TapeStore(...)          # an empty one, for each test

`pytest` collects the rest. `pytest.register_assert_rewrite("rayhistory.storage.contract")` in your conftest.py, before
the import, shows the values of an assertion that fails.
"""  # fmt: skip
# ruff: noqa: S101

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.errors import ObjectExists, ObjectNotFound, StoreError
from rayhistory.storage.seam import Store

ODD_NAMES = (
    "q?detail=1&limit=2",
    "per%20cent",
    "a b",
    "ümlaut",
    "x#y",
    "a+b=c",
    "a:b",
    "~a",
    "a*b",
    "[a]",
    "'a'",
    "a,b;c",
)
NO_KEYS = ("../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/\0", "a/", "a\nb")


class StoreContract:
    keeps_byte_order = True
    """Whether listings are in the order of the keys' bytes, as S3's are."""

    large_object = 12 * 2**20 + 1
    """An object that is larger than what the store takes in one piece."""

    def new_store(self) -> Store:
        raise NotImplementedError

    def run(self, work: Callable[[Store], Awaitable[None]]) -> None:
        async def whole() -> None:
            store = self.new_store()
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(whole())

    def test_what_was_put_can_be_read_whole_and_in_part(self) -> None:
        async def work(store: Store) -> None:
            await store.put("a/b", b"hello world")
            assert await store.get("a/b") == b"hello world"
            assert await store.get_range("a/b", 6, 9) == b"wor"
            assert await store.get_range("a/b", 6, 99) == b"world"
            assert await store.get_range("a/b", 11, 60) == b""
            assert await store.get_range("a/b", 50, 60) == b""
            assert await store.get_range("a/b", 5, 5) == b""
            await store.put("a/b", b"again")
            assert await store.get("a/b") == b"again"

        self.run(work)

    def test_an_empty_object_is_an_object(self) -> None:
        async def work(store: Store) -> None:
            await store.put("empty", b"")
            assert await store.get("empty") == b""
            assert await store.get_range("empty", 0, 10) == b""
            assert (await store.head("empty")).size == 0
            assert [info.key async for info in store.list_all("")] == ["empty"]

        self.run(work)

    def test_a_file_of_any_size_is_put_as_it_is(self, tmp_path: Path) -> None:
        async def work(store: Store) -> None:
            source = tmp_path / "source"
            for size in (0, 11, self.large_object):
                source.write_bytes((b"0123456789abcdef" * (size // 16 + 1))[:size])
                await store.put("from/a/file", source)
                assert (await store.head("from/a/file")).size == size
                assert await store.get("from/a/file") == source.read_bytes()
                assert await store.get_range("from/a/file", size // 2, size) == source.read_bytes()[size // 2 :]
            with pytest.raises(ObjectNotFound):
                await store.put("from/no/file", tmp_path / "nothing")

        self.run(work)

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system has no such paths")
    def test_an_open_file_is_put_by_its_descriptor(self, tmp_path: Path) -> None:
        """Its name may lead to something else by then."""

        async def work(store: Store) -> None:
            source = tmp_path / "source"
            for size in (11, self.large_object):
                data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
                source.write_bytes(data)
                with source.open("rb") as file:
                    source.unlink()
                    await store.put("from/a/descriptor", Path(f"/proc/self/fd/{file.fileno()}"))
                assert await store.get("from/a/descriptor") == data

        self.run(work)

    def test_large_bytes_are_put_too(self) -> None:
        async def work(store: Store) -> None:
            data = bytes(self.large_object)
            await store.put("large", data)
            assert await store.get("large") == data

        self.run(work)

    def test_the_stores_clock_tells_when_an_object_was_written(self) -> None:
        async def work(store: Store) -> None:
            before = time.time()
            await store.put("a/b", b"hello")
            info = await store.head("a/b")
            assert (info.key, info.size) == ("a/b", 5)
            assert before - 2 <= info.modified <= time.time() + 2
            [listed] = [listed async for listed in store.list_all("a")]
            assert listed.key == "a/b"
            assert abs(listed.modified - info.modified) < 1

        self.run(work)

    def test_a_create_succeeds_once_however_many_try(self) -> None:
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

        self.run(work)

    def test_a_create_of_the_same_bytes_comes_second_too(self) -> None:
        async def work(store: Store) -> None:
            await store.create("claim", b"")
            with pytest.raises(ObjectExists):
                await store.create("claim", b"")
            await store.delete("claim")
            await store.create("claim", b"")
            await store.put("claim", b"over it")
            assert await store.get("claim") == b"over it"

        self.run(work)

    def test_what_is_not_there_is_not_found(self) -> None:
        async def work(store: Store) -> None:
            await store.put("folder/object", b"")
            for key in ("nothing", "folder", "folder/object/below"):
                for call in (store.get(key), store.head(key), store.get_range(key, 0, 1), store.get_range(key, 1, 1)):
                    with pytest.raises(ObjectNotFound):
                        await call
            await store.delete("nothing")
            await store.delete("folder/object")
            with pytest.raises(ObjectNotFound):
                await store.get("folder/object")

        self.run(work)

    def test_other_bytes_have_another_tag(self) -> None:
        """A store may have none. Otherwise a tag that is the MD5 of some bytes is that of these."""

        async def work(store: Store) -> None:
            await store.put("t/a", b"some")
            await store.put("t/b", b"else")
            one, other = [info async for info in store.list_all("t")]
            assert (await store.head("t/a")).tag == one.tag
            assert one.tag != other.tag or not one.tag
            assert one.tag != hashlib.md5(b"else", usedforsecurity=False).hexdigest()

        self.run(work)

    def test_listings_keep_to_whole_path_components(self) -> None:
        async def work(store: Store) -> None:
            keys = ["p/a/b", "p/a/c/d", "p/b", "p-other/x", "q"]
            for key in keys:
                await store.put(key, key.encode())
            assert [info.key async for info in store.list_all("p")] == ["p/a/b", "p/a/c/d", "p/b"]
            assert [info.key async for info in store.list_all("p/")] == ["p/a/b", "p/a/c/d", "p/b"]
            assert [info.key async for info in store.list_all("p", start_after="p/a/b")] == ["p/a/c/d", "p/b"]
            assert [info.key async for info in store.list_all("nothing")] == []
            assert {info.key async for info in store.list_all("")} == set(keys)
            listing = await store.list_folder("p")
            assert listing.folders == ["a"]
            assert [(info.key, info.size) for info in listing.objects] == [("p/b", 3)]
            top = await store.list_folder("")
            assert (top.folders, [info.key for info in top.objects]) == (["p", "p-other"], ["q"])
            assert await store.list_folder("nothing") == type(listing)([], [])

        self.run(work)

    def test_listings_are_in_the_order_of_their_keys(self) -> None:
        async def work(store: Store) -> None:
            keys = ["p/A", "p/a-", "p/a.b", "p/a/b", "p/a/c/d", "p/a0", "p/b"]
            for key in reversed(keys):
                await store.put(key, b"")
            assert [info.key async for info in store.list_all("p")] == keys
            for number, key in enumerate(keys):
                assert [info.key async for info in store.list_all("p", start_after=key)] == keys[number + 1 :]
            assert [info.key async for info in store.list_all("p", start_after="p/a/bb")] == keys[4:]

        if not self.keeps_byte_order:
            pytest.skip("this store lists in the order of a tree")
        self.run(work)

    def test_a_listing_has_as_many_pages_as_it_needs(self) -> None:
        async def work(store: Store) -> None:
            keys = [f"many/{number:04d}/object" for number in range(1100)]
            for start in range(0, len(keys), 50):
                await asyncio.gather(*(store.put(key, b"x") for key in keys[start : start + 50]))
            assert [info.key async for info in store.list_all("many")] == keys
            assert [info.key async for info in store.list_all("many", start_after=keys[1050])] == keys[1051:]
            assert (await store.list_folder("many")).folders == [key.split("/")[1] for key in keys]

        self.run(work)

    def test_odd_names_come_back_as_they_were(self) -> None:
        async def work(store: Store) -> None:
            for name in ODD_NAMES:
                await store.put(f"odd/{name}/{name}", name.encode())
                assert await store.get(f"odd/{name}/{name}") == name.encode()
                assert [info.key async for info in store.list_all(f"odd/{name}")] == [f"odd/{name}/{name}"]
            assert set((await store.list_folder("odd")).folders) == set(ODD_NAMES)

        self.run(work)

    @pytest.mark.parametrize("key", NO_KEYS)
    def test_no_key_leads_out_of_the_store(self, key: str) -> None:
        async def work(store: Store) -> None:
            for call in (
                store.put(key, b""),
                store.create(key, b""),
                store.get(key),
                store.head(key),
                store.delete(key),
            ):
                with pytest.raises(StoreError, match="not a key"):
                    await call

        self.run(work)
