"""What only a directory can do wrong."""

import asyncio
import os
import resource
from pathlib import Path

import pytest

from rayhistory.errors import Misconfigured, ObjectNotFound, StoreDenied, StoreError, StoreUnavailable
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Listing, Store, open_store
from rayhistory.storage.local import LocalStore


def open_directory(directory: Path) -> Store:
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(directory)})
    return open_store(settings, writable=True)


def test_half_written_objects_are_not_listed(tmp_path: Path) -> None:
    """A crash in the middle of a put leaves nothing that a reader sees."""

    async def work() -> None:
        store = open_directory(tmp_path)
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
    with pytest.raises(Misconfigured, match=r"LOCAL_STORAGE_DIR=.*cannot be made"):
        open_store(settings, writable=True)


def test_a_directory_that_is_gone_is_an_outage_and_not_an_empty_store(tmp_path: Path) -> None:
    """And is not made again, which would be an empty one."""

    async def work() -> None:
        there, later = LocalStore(tmp_path / "there"), LocalStore(tmp_path / "later")
        await there.put("a/b", b"1")
        (tmp_path / "there").rename(tmp_path / "away")
        for asked in (
            there.list_folder(""), there.list_folder("a"), anext(there.list_all("")), anext(there.list_all("a")),
            there.get("a/b"), there.get_range("a/b", 0, 1), there.head("a/b"), there.put("a/b", b"2"),
            there.create("a/c", b"2"),
        ):  # fmt: skip
            with pytest.raises(StoreUnavailable, match="the directory is gone"):
                await asked
        (tmp_path / "away").rename(tmp_path / "there")
        assert await there.get("a/b") == b"1"
        assert [info.key async for info in there.list_all("nobody")] == []
        assert await later.list_folder("") == Listing([], [])
        with pytest.raises(ObjectNotFound):
            await later.head("a/b")
        await later.put("a/b", b"1")
        assert (await later.list_folder("")).folders == ["a"]

    asyncio.run(work())


def test_directories_that_are_made_for_an_object_are_there_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is synced into the one above it, once: what follows costs a sync of the object and one of its directory."""
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), sync(file)))

    async def work() -> None:
        store = open_directory(tmp_path / "new/store")
        await store.put("a/b/c", b"1")
        made = ["", "new", "new/store", "new/store/a", "new/store/a/b", "new/store/a/b/c"]
        assert {(tmp_path / name).stat().st_ino for name in made} <= set(synced)
        synced.clear()
        await store.put("a/b/d", b"1")
        assert len(synced) == 2

    asyncio.run(work())


def test_a_key_that_is_too_long_is_no_outage(tmp_path: Path) -> None:
    """Nobody needs to wait for it to become shorter."""

    async def work() -> None:
        with pytest.raises(StoreError, match="too long a key") as raised:
            await open_directory(tmp_path).put("/".join(["x" * 250] * 20), b"")
        assert not isinstance(raised.value, StoreUnavailable)

    asyncio.run(work())


def test_a_full_disk_is_unavailable_and_leaves_what_was_there(tmp_path: Path) -> None:
    """As a limit on the size of files, which fails a write in its middle just so."""

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
def test_a_directory_without_permission_is_denied_and_not_empty(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_directory(tmp_path)
        await store.put("closed/object", b"")
        (tmp_path / "closed").chmod(0)
        with pytest.raises(StoreDenied):
            await store.list_folder("closed")

    asyncio.run(work())
    (tmp_path / "closed").chmod(0o700)
