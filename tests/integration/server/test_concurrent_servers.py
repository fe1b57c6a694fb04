"""Several servers on one store and one cache, and a store with an outage."""

import asyncio
import dataclasses
import multiprocessing
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import msgspec
from starlette.testclient import TestClient

from rayhistory.index.fold.fold_process import FoldJob, fold
from rayhistory.index.manifest import Manifest, read_latest_manifest
from rayhistory.index.query.query import Query
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from support.folding import END, RECORDED, REF, as_lines, put, rows, settings_for

TABLES = ("tasks", "actors", "workers", "jobs", "nodes")


def test_store_outage_is_reported_and_not_cached(tmp_path: Path) -> None:
    """The same server serves before and after an outage, and reports 503 during it."""
    store, moved = tmp_path / "store", tmp_path / "moved"
    put(store, 0, as_lines(RECORDED))
    (store / Layout().metadata_key(REF)).parent.mkdir(parents=True)
    (store / Layout().metadata_key(REF)).touch()
    settings = dataclasses.replace(settings_for(store, cache=tmp_path / "cache"), index_ahead=False)
    with TestClient(create_app(settings)) as client:

        def wait_for_status(status: int) -> None:
            deadline = time.monotonic() + 60
            for path in ("/clusters", f"/s/{REF.path}/api/v0/tasks?limit=1000", f"/s/{REF.path}/api/history/gaps"):
                while (response := client.get(path)).status_code != status:
                    assert time.monotonic() < deadline, (path, response.text)
                    time.sleep(0.2)

        wait_for_status(200)
        store.rename(moved)
        wait_for_status(503)
        moved.rename(store)
        wait_for_status(200)
        assert len(client.get("/clusters").json()) == 1


def _count_rows(store: Path, cache: Path, times: int) -> list[int]:
    """Count the rows of each table several times, in a process of its own."""

    async def count() -> list[int]:
        settings = dataclasses.replace(settings_for(store, cache=cache), cache_size=20_000)
        builder = IndexBuilder(settings, open_store(settings), Layout())
        index = await builder.open(REF, END, 120)
        counts = [await index.count(Query(table)) for _ in range(times) for table in TABLES]
        await builder.close()
        return counts

    return asyncio.run(count())


def test_two_processes_share_a_cache_that_is_too_small(tmp_path: Path) -> None:
    """Each evicts the files of the other, and both results stay correct."""
    put(tmp_path / "store", 0, as_lines(RECORDED))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        counting = [pool.submit(_count_rows, tmp_path / "store", tmp_path / "cache", 20) for _ in range(2)]
        one, two = (process.result(120) for process in counting)
    assert one == two == one[: len(TABLES)] * 20
    assert one[0] > 20


def test_two_concurrent_builders_leave_one_complete_index(tmp_path: Path) -> None:
    """Both succeed without knowing of each other, and readers see the index of one of them."""
    put(tmp_path, 0, as_lines(RECORDED))
    barrier = threading.Barrier(2, timeout=120)

    def build() -> Manifest:
        def wait_for_the_other(_: float, detail: str) -> None:
            if detail == "writing the index":
                barrier.wait()

        with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
            job = FoldJob(msgspec.to_builtins(settings_for(tmp_path)), REF, END, scratch)
            return asyncio.run(fold(job, wait_for_the_other))

    with ThreadPoolExecutor(2) as pool:
        manifests = [future.result() for future in [pool.submit(build), pool.submit(build)]]
    latest = asyncio.run(read_latest_manifest(LocalStore(tmp_path), Layout(), REF))
    assert latest in manifests
    assert len({manifest.build for manifest in manifests}) == latest.generation
    for manifest in manifests:
        assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'") == [(23,)]
