"""Sessions are indexed as they grow and end, before anybody opens them; those that are over are left alone."""

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

from folding import RECORDED, REF, as_lines, put, settings_for
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.manifest import Manifest, read_latest
from rayhistory.layout import EndRecord, Layout, SessionRef, StartRecord
from rayhistory.server.app import create_app
from rayhistory.server.catalogue import Catalogue
from rayhistory.server.indexer import Indexer
from rayhistory.storage import ObjectInfo
from rayhistory.storage.local import LocalStore

LAYOUT = Layout()
OTHER = SessionRef.checked("default", "other", "session_2026-11-16_00-00-00_000000_1")


def begin(store: Path, ref: SessionRef = REF) -> None:
    """What a collector writes of a session that runs."""
    record = StartRecord(ref.namespace, ref.cluster, ref.session, 1_794_770_288_055)
    for key, data in {LAYOUT.start_key(ref): msgspec.json.encode(record), LAYOUT.alive_key(ref): b""}.items():
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(data)


def latest(store: Path, ref: SessionRef = REF) -> Manifest | None:
    return asyncio.run(read_latest(LocalStore(store), LAYOUT, ref))


def eventually(store: Path, is_so: Callable[[Manifest], bool]) -> Manifest:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        (store / LAYOUT.alive_key(REF)).touch()
        manifest = latest(store)
        if manifest and is_so(manifest):
            return manifest
        time.sleep(0.2)
    raise AssertionError(f"no such index within two minutes: {latest(store)}")


def grows_and_is_indexed(store: Path, first: str) -> None:
    """Of the file that was folded already nothing is left to read: its tasks are there all the same."""
    assert eventually(store, lambda manifest: manifest.events == 50).closing is None
    path = store / first
    path.write_bytes(b"\n" * path.stat().st_size)
    put(store, 1, as_lines(RECORDED[50:]))
    grown = eventually(store, lambda manifest: manifest.events == len(RECORDED))
    assert (grown.generation, grown.counts.tasks, grown.closing) == (2, 23, None)


def test_the_server_indexes_a_session_that_grows_without_a_visitor(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = put(store, 0, as_lines(RECORDED[:50]))
    begin(store)
    with TestClient(create_app(settings_for(store, cache=tmp_path / "cache"))):
        grows_and_is_indexed(store, first)


@contextmanager
def watching(store: Path, cache: Path, *names: str) -> Iterator["subprocess.Popen[str]"]:
    """`rayhistory index --watch`, after its first look at the store."""
    command = [Path(sys.executable).with_name("rayhistory"), "index", "--watch", *names, "--cache-dir", str(cache)]
    environment = os.environ | {"LOCAL_STORAGE_DIR": str(store)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert any(line.startswith("watching") for line in process.stdout)
            yield process
        finally:
            process.terminate()


def test_watching_a_session_indexes_it_as_it_grows_and_leaves_others_alone(tmp_path: Path) -> None:
    """The other one is newer: without a name it would come first."""
    store = tmp_path / "store"
    first = put(store, 0, as_lines(RECORDED[:50]))
    begin(store)
    begin(store, OTHER)
    with watching(store, tmp_path / "cache", f"{REF.namespace}/{REF.cluster}"):
        grows_and_is_indexed(store, first)
        assert latest(store, OTHER) is None


class Counting(LocalStore):
    """Counts how often each place is listed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.looks: Counter[str] = Counter()

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.looks[prefix] += 1
        return super().list_all(prefix, start_after)


def test_a_session_that_ended_long_ago_is_not_listed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has just ended is: other nodes may still be uploading."""
    monkeypatch.setattr("rayhistory.server.indexer._LATE_FILES", 0.1)
    monkeypatch.setattr("rayhistory.index.builder._LOOK_AGAIN", 0.0)
    store, hour = Counting(tmp_path / "store"), 3600
    old = SessionRef.checked("default", "old", "session_2020-01-01_00-00-00_000000_1")
    for ref, ended in ((OTHER, time.time() + hour), (old, time.time() - hour)):
        begin(tmp_path / "store", ref)
        (tmp_path / "store" / LAYOUT.end_key(ref)).write_bytes(msgspec.json.encode(EndRecord(int(ended * 1000))))

    async def work() -> None:
        settings = settings_for(tmp_path / "store", cache=tmp_path / "cache")
        builder = IndexBuilder(settings, store, LAYOUT)
        indexing = asyncio.create_task(Indexer(Catalogue(store, LAYOUT, 120), builder).run(looking=0.01))
        async with asyncio.timeout(120):
            while not store.looks[LAYOUT.snapshots_prefix(old)]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            store.looks.clear()
            while store.looks[LAYOUT.snapshots_prefix(OTHER)] < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        indexing.cancel()
        await asyncio.gather(indexing, return_exceptions=True)
        await builder.close()

    asyncio.run(work())
    assert latest(tmp_path / "store", old)
    assert store.looks[LAYOUT.snapshots_prefix(old)] == 0
