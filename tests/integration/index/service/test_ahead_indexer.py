"""Sessions are indexed while they grow and when they end; sessions that ended long ago cost no listings."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.index.manifest import Manifest, read_latest_manifest
from rayhistory.index.service.ahead_indexer import AheadIndexer
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.app import create_app
from rayhistory.sessions import EndRecord, Layout, SessionRef, StartRecord
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.storage import ObjectInfo
from rayhistory.storage.local import LocalStore
from support.folding import RECORDED, REF, as_lines, put, settings_for

LAYOUT = Layout()
OTHER = SessionRef.checked("default", "other", "session_2026-11-16_00-00-00_000000_1")


def write_running_session(store: Path, ref: SessionRef = REF) -> None:
    """What a collector writes of a session that runs."""
    record = StartRecord(ref.namespace, ref.cluster, ref.session, 1_794_770_288_055)
    for key, data in {LAYOUT.start_key(ref): msgspec.json.encode(record), LAYOUT.alive_key(ref): b""}.items():
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(data)


def latest(store: Path, ref: SessionRef = REF) -> Manifest | None:
    return asyncio.run(read_latest_manifest(LocalStore(store), LAYOUT, ref))


def wait_for_index(store: Path, matches: Callable[[Manifest], bool]) -> Manifest:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        (store / LAYOUT.alive_key(REF)).touch()
        manifest = latest(store)
        if manifest and matches(manifest):
            return manifest
        time.sleep(0.2)
    raise AssertionError(f"no matching index within two minutes: {latest(store)}")


def grow_and_check_index(store: Path, first: str) -> None:
    """Blank the folded object and add a second one: the extended index has the tasks of both."""
    assert wait_for_index(store, lambda manifest: manifest.events == 50).closing is None
    path = store / first
    path.write_bytes(b"\n" * path.stat().st_size)
    put(store, 1, as_lines(RECORDED[50:]))
    grown = wait_for_index(store, lambda manifest: manifest.events == len(RECORDED))
    assert (grown.generation, grown.counts.tasks, grown.closing) == (2, 23, None)


def test_server_indexes_a_growing_session_without_requests(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = put(store, 0, as_lines(RECORDED[:50]))
    write_running_session(store)
    with TestClient(create_app(settings_for(store, cache=tmp_path / "cache"))):
        grow_and_check_index(store, first)


@contextmanager
def watching(store: Path, cache: Path, *names: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `rayhistory index --watch` and wait for its first pass."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("rayhistory"),
        "index",
        "--watch",
        *names,
        "--cache-dir",
        str(cache),
    ]
    environment = os.environ | {"LOCAL_STORAGE_DIR": str(store)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert any(line.startswith("watching") for line in process.stdout)
            yield process
        finally:
            process.terminate()


def test_index_watch_indexes_only_the_named_session(tmp_path: Path) -> None:
    """The other session is newer and would come first without a name."""
    store = tmp_path / "store"
    first = put(store, 0, as_lines(RECORDED[:50]))
    write_running_session(store)
    write_running_session(store, OTHER)
    with watching(store, tmp_path / "cache", f"{REF.namespace}/{REF.cluster}"):
        grow_and_check_index(store, first)
        assert latest(store, OTHER) is None


class ListingCounter(LocalStore):
    """Counts the listings of each prefix."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.listings: Counter[str] = Counter()

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.listings[prefix] += 1
        return super().list_all(prefix, start_after)


def test_sessions_that_ended_long_ago_are_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has just ended is: other nodes may still upload. The store's clock counts."""
    monkeypatch.setattr("rayhistory.index.service.ahead_indexer._MIN_RECHECK_S", 0.1)
    monkeypatch.setattr("rayhistory.index.service.builder._FRESH_FOR_S", 0.0)
    store, hour = ListingCounter(tmp_path / "store"), 3600
    old = SessionRef.checked("default", "old", "session_2020-01-01_00-00-00_000000_1")
    for ref, ended in ((OTHER, time.time() + hour), (old, time.time() - hour)):
        write_running_session(tmp_path / "store", ref)
        (tmp_path / "store" / LAYOUT.end_key(ref)).write_bytes(msgspec.json.encode(EndRecord(int(ended * 1000))))
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and old.session in str(path):
            os.utime(path, (time.time() - hour, time.time() - hour))

    async def work() -> None:
        settings = settings_for(tmp_path / "store", cache=tmp_path / "cache")
        builder = IndexBuilder(settings, store, LAYOUT)
        indexing = asyncio.create_task(
            AheadIndexer(SessionCatalog(store, LAYOUT, 120), builder).run(poll_interval_s=0.01)
        )
        async with asyncio.timeout(120):
            while not store.listings[LAYOUT.dashboard_responses_prefix(old)]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            store.listings.clear()
            while store.listings[LAYOUT.dashboard_responses_prefix(OTHER)] < 3:  # noqa: ASYNC110 - each takes twice as long
                await asyncio.sleep(0.01)
        indexing.cancel()
        await asyncio.gather(indexing, return_exceptions=True)
        await builder.close()

    asyncio.run(work())
    assert latest(tmp_path / "store", old)
    assert store.listings[LAYOUT.dashboard_responses_prefix(old)] == 0
