"""A test suite that every store must pass, for authors of backends.

    from rayhistory.storage import Store
    from rayhistory.storage.contract_tests import StoreContract

    class TestTapeStore(StoreContract):
        def new_store(self) -> Store:
            return TapeStore(...)          # a new, empty store

`pytest` collects the tests. To see the values of a failed assertion, call
`pytest.register_assert_rewrite("rayhistory.storage.contract_tests")` in your conftest.py before the import.
"""  # fmt: skip
# ruff: noqa: S101

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.errors import ObjectExists, ObjectNotFound, StoreError
from rayhistory.storage.bulk_delete import BULK_KEYS, delete_many
from rayhistory.storage.store import Store

UNUSUAL_NAMES = (
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
INVALID_KEYS = ("../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/\0", "a/", "a\nb")


class StoreContract:
    """Tests of one backend. Subclass it and define `new_store`."""

    keeps_byte_order = True
    """Set to False if `list_all` does not sort keys by their bytes. (S3 does.)"""

    large_object_bytes = 12 * 2**20 + 1
    """A size that the backend uploads in several parts."""

    def new_store(self) -> Store:
        """Return a new, empty store. Called once in each test."""
        raise NotImplementedError

    def run(self, work: Callable[[Store], Awaitable[None]]) -> None:
        """Run a test with a new store, and close the store."""

        async def run_and_close() -> None:
            store = self.new_store()
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(run_and_close())

    def test_get_returns_whole_object_and_ranges(self) -> None:
        """A range that is too long ends at the end of the object. A range behind the end is empty."""

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

    def test_empty_objects_exist(self) -> None:
        async def work(store: Store) -> None:
            await store.put("empty", b"")
            assert await store.get("empty") == b""
            assert await store.get_range("empty", 0, 10) == b""
            assert (await store.head("empty")).size == 0
            assert [info.key async for info in store.list_all("")] == ["empty"]

        self.run(work)

    def test_put_uploads_files_of_any_size(self, tmp_path: Path) -> None:
        """Uploading a file that does not exist raises ObjectNotFound."""

        async def work(store: Store) -> None:
            source = tmp_path / "source"
            for size in (0, 11, self.large_object_bytes):
                source.write_bytes((b"0123456789abcdef" * (size // 16 + 1))[:size])
                await store.put("from/a/file", source)
                assert (await store.head("from/a/file")).size == size
                assert await store.get("from/a/file") == source.read_bytes()
                assert await store.get_range("from/a/file", size // 2, size) == source.read_bytes()[size // 2 :]
            with pytest.raises(ObjectNotFound):
                await store.put("from/no/file", tmp_path / "nothing")

        self.run(work)

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc/self/fd on this system")
    def test_put_uploads_a_deleted_file_by_descriptor(self, tmp_path: Path) -> None:
        """The bytes are those of the open file, even if its name is gone or belongs to another file."""

        async def work(store: Store) -> None:
            source = tmp_path / "source"
            for size in (11, self.large_object_bytes):
                data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
                source.write_bytes(data)
                with source.open("rb") as file:
                    source.unlink()
                    await store.put("from/a/descriptor", Path(f"/proc/self/fd/{file.fileno()}"))
                assert await store.get("from/a/descriptor") == data

        self.run(work)

    def test_put_uploads_large_bytes(self) -> None:
        async def work(store: Store) -> None:
            data = bytes(self.large_object_bytes)
            await store.put("large", data)
            assert await store.get("large") == data

        self.run(work)

    def test_modification_time_is_the_time_of_the_write(self) -> None:
        """`head` and `list_all` return the same time."""

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

    def test_one_of_many_concurrent_creates_succeeds(self) -> None:
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

    def test_second_create_fails_even_with_the_same_bytes(self) -> None:
        """After a delete, create succeeds again; `put` always overwrites."""

        async def work(store: Store) -> None:
            await store.create("lease", b"")
            with pytest.raises(ObjectExists):
                await store.create("lease", b"")
            await store.delete("lease")
            await store.create("lease", b"")
            await store.put("lease", b"overwritten")
            assert await store.get("lease") == b"overwritten"

        self.run(work)

    def test_missing_objects_raise_object_not_found(self) -> None:
        """Folders are not objects. Deleting a missing object is not an error."""

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

    def test_tags_differ_if_bytes_differ(self) -> None:
        """Tags are optional. A tag that looks like an MD5 must be the MD5 of the object."""

        async def work(store: Store) -> None:
            await store.put("t/a", b"some")
            await store.put("t/b", b"else")
            first, second = [info async for info in store.list_all("t")]
            assert (await store.head("t/a")).tag == first.tag
            assert first.tag != second.tag or not first.tag
            assert first.tag != hashlib.md5(b"else", usedforsecurity=False).hexdigest()

        self.run(work)

    def test_prefixes_match_whole_path_components(self) -> None:
        """`p` does not match `p-other`. A missing prefix gives an empty listing."""

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

    def test_listings_are_sorted_by_key(self) -> None:
        async def work(store: Store) -> None:
            keys = ["p/A", "p/a-", "p/a.b", "p/a/b", "p/a/c/d", "p/a0", "p/b"]
            for key in reversed(keys):
                await store.put(key, b"")
            assert [info.key async for info in store.list_all("p")] == keys
            for number, key in enumerate(keys):
                assert [info.key async for info in store.list_all("p", start_after=key)] == keys[number + 1 :]
            assert [info.key async for info in store.list_all("p", start_after="p/a/bb")] == keys[4:]

        if not self.keeps_byte_order:
            pytest.skip("this store does not sort keys by their bytes")
        self.run(work)

    def test_listings_continue_over_many_pages(self) -> None:
        async def work(store: Store) -> None:
            keys = [f"many/{number:04d}/object" for number in range(1100)]
            for start in range(0, len(keys), 50):
                await asyncio.gather(*(store.put(key, b"x") for key in keys[start : start + 50]))
            assert [info.key async for info in store.list_all("many")] == keys
            assert [info.key async for info in store.list_all("many", start_after=keys[1050])] == keys[1051:]
            assert (await store.list_folder("many")).folders == [key.split("/")[1] for key in keys]

        self.run(work)

    def test_bulk_deletes_remove_exactly_the_named_objects(self) -> None:
        """`delete_many` is optional. A store that has it accepts every valid key, and a missing key is no error."""

        async def work(store: Store) -> None:
            names = [f"bulk/{number:04d}" for number in range(BULK_KEYS + 20)] + [f"bulk/{n}" for n in UNUSUAL_NAMES]
            for start in range(0, len(names), 50):
                await asyncio.gather(*(store.put(key, b"x") for key in (*names[start : start + 50], "bulk-not")))
            kept = [names[0], names[-1]]

            async def each(*keys: str) -> AsyncIterator[str]:
                for key in keys:
                    yield key

            assert await delete_many(store, each(*names[1:-1])) == len(names) - 2
            assert sorted([info.key async for info in store.list_all("bulk")]) == sorted(kept)
            assert await delete_many(store, each(names[1], names[0], "bulk/missing")) == 3
            assert [info.key async for info in store.list_all("bulk")] == kept[1:]
            assert (await store.head("bulk-not")).size == 1

        self.run(work)

    def test_keys_with_special_characters_round_trip(self) -> None:
        async def work(store: Store) -> None:
            for name in UNUSUAL_NAMES:
                await store.put(f"unusual/{name}/{name}", name.encode())
                assert await store.get(f"unusual/{name}/{name}") == name.encode()
                assert [info.key async for info in store.list_all(f"unusual/{name}")] == [f"unusual/{name}/{name}"]
            assert set((await store.list_folder("unusual")).folders) == set(UNUSUAL_NAMES)

        self.run(work)

    @pytest.mark.parametrize("key", INVALID_KEYS)
    def test_invalid_keys_are_rejected(self, key: str) -> None:
        """No key refers to a path outside of the store.

        Check keys with `rayhistory.storage.object_keys.checked_key`.
        """

        async def work(store: Store) -> None:
            for call in (
                store.put(key, b""),
                store.create(key, b""),
                store.get(key),
                store.head(key),
                store.delete(key),
            ):
                with pytest.raises(StoreError, match="invalid key"):
                    await call

        self.run(work)
