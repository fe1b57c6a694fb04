"""Failures that only the directory store can have."""

import asyncio
import os
import resource
from pathlib import Path

import pytest

from rayhistory.errors import InvalidSetting, ObjectNotFound, StoreDenied, StoreError, StoreUnavailable
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Listing, Store, open_store
from rayhistory.storage.local import LocalStore


def open_directory(directory: Path) -> Store:
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(directory)})
    return open_store(settings, writable=True)


def test_partial_objects_are_not_listed(tmp_path: Path) -> None:
    """A crash during a put leaves nothing that readers see."""

    async def work() -> None:
        store = open_directory(tmp_path)
        await store.put("a/b", b"1")
        (tmp_path / "a/.half-written-0123").write_bytes(b"torn")
        assert [info.key async for info in store.list_all("")] == ["a/b"]

    asyncio.run(work())


def test_unusable_directory_is_reported_at_start(tmp_path: Path) -> None:
    """The error names the variable."""
    (tmp_path / "file").write_bytes(b"")
    for directory, reason in (("missing", "no such directory"), ("file", "no such directory")):
        settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(tmp_path / directory)})
        with pytest.raises(InvalidSetting, match=f"LOCAL_STORAGE_DIR=.*{reason}"):
            open_store(settings)
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(tmp_path / "file/below")})
    with pytest.raises(InvalidSetting, match=r"LOCAL_STORAGE_DIR=.*cannot create the directory"):
        open_store(settings, writable=True)


def test_deleted_directory_is_an_outage_not_an_empty_store(tmp_path: Path) -> None:
    """It is not created again, which would make an empty store."""

    async def work() -> None:
        deleted, unwritten = LocalStore(tmp_path / "there"), LocalStore(tmp_path / "later")
        await deleted.put("a/b", b"1")
        (tmp_path / "there").rename(tmp_path / "away")
        for call in (
            deleted.list_folder(""), deleted.list_folder("a"),
            anext(deleted.list_all("")), anext(deleted.list_all("a")),
            deleted.get("a/b"), deleted.get_range("a/b", 0, 1), deleted.head("a/b"), deleted.put("a/b", b"2"),
            deleted.create("a/c", b"2"),
        ):  # fmt: skip
            with pytest.raises(StoreUnavailable, match="the directory was deleted"):
                await call
        (tmp_path / "away").rename(tmp_path / "there")
        assert await deleted.get("a/b") == b"1"
        assert [info.key async for info in deleted.list_all("missing")] == []
        assert await unwritten.list_folder("") == Listing([], [])
        with pytest.raises(ObjectNotFound):
            await unwritten.head("a/b")
        await unwritten.put("a/b", b"1")
        assert (await unwritten.list_folder("")).folders == ["a"]

    asyncio.run(work())


def test_new_directories_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is synced into its parent; later writes sync only the object and its directory."""
    synced: list[int] = []
    sync = os.fsync

    def record(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, "fsync", record)

    async def work() -> None:
        store = open_directory(tmp_path / "new/store")
        await store.put("a/b/c", b"1")
        created = ["", "new", "new/store", "new/store/a", "new/store/a/b", "new/store/a/b/c"]
        assert {(tmp_path / name).stat().st_ino for name in created} <= set(synced)
        synced.clear()
        await store.put("a/b/d", b"1")
        assert len(synced) == 2

    asyncio.run(work())


def test_too_long_key_is_an_error_not_an_outage(tmp_path: Path) -> None:
    """Callers must not retry it."""

    async def work() -> None:
        with pytest.raises(StoreError, match="too long for the file system") as raised:
            await open_directory(tmp_path).put("/".join(["x" * 250] * 20), b"")
        assert not isinstance(raised.value, StoreUnavailable)

    asyncio.run(work())


def test_full_disk_is_an_outage_and_keeps_the_old_object(tmp_path: Path) -> None:
    """A limit on file size fails a write in the middle, like a full disk."""

    async def work() -> None:
        store = open_directory(tmp_path)
        await store.put("a/b", b"whole")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
        try:
            with pytest.raises(StoreUnavailable, match="File too large"):
                await store.put("a/b", bytes(2**20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert await store.get("a/b") == b"whole"
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]

    asyncio.run(work())


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_directory_without_permission_is_denied_not_empty(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_directory(tmp_path)
        await store.put("closed/object", b"")
        (tmp_path / "closed").chmod(0)
        with pytest.raises(StoreDenied):
            await store.list_folder("closed")

    asyncio.run(work())
    (tmp_path / "closed").chmod(0o700)
