"""Several at once on one store and one cache, and a store that goes away: whoever asks gets what is true."""

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

from folding import END, RECORDED, REF, as_lines, put, rows, settings_for
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.fold import FoldJob, fold
from rayhistory.index.manifest import Manifest, read_latest
from rayhistory.index.query import Query
from rayhistory.layout import Layout
from rayhistory.server.app import create_app
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore

TABLES = ("tasks", "actors", "workers", "jobs", "nodes")


def test_an_outage_is_told_and_not_remembered(tmp_path: Path) -> None:
    """The same server, before, while and after its store is away."""
    store, away = tmp_path / "store", tmp_path / "away"
    put(store, 0, as_lines(RECORDED))
    (store / Layout().metadata_key(REF)).parent.mkdir(parents=True)
    (store / Layout().metadata_key(REF)).touch()
    settings = dataclasses.replace(settings_for(store, cache=tmp_path / "cache"), index_ahead=False)
    with TestClient(create_app(settings)) as client:

        def becomes(status: int) -> None:
            deadline = time.monotonic() + 60
            for path in ("/clusters", f"/s/{REF.path}/api/v0/tasks?limit=1000", f"/s/{REF.path}/api/history/gaps"):
                while (answer := client.get(path)).status_code != status:
                    assert time.monotonic() < deadline, (path, answer.text)
                    time.sleep(0.2)

        becomes(200)
        store.rename(away)
        becomes(503)
        away.rename(store)
        becomes(200)
        assert len(client.get("/clusters").json()) == 1


def _ask(store: Path, cache: Path, times: int) -> list[int]:
    """A process of its own: how many rows each table has, each time that it is asked for."""

    async def ask() -> list[int]:
        settings = dataclasses.replace(settings_for(store, cache=cache), cache_size=20_000)
        builder = IndexBuilder(settings, open_store(settings), Layout())
        index = await builder.open(REF, END, 120)
        counts = [await index.count(Query(table)) for _ in range(times) for table in TABLES]
        await builder.close()
        return counts

    return asyncio.run(ask())


def test_two_processes_share_a_cache_that_is_too_small_for_both(tmp_path: Path) -> None:
    """Each removes what the other has just fetched; no answer is wrong because of that."""
    put(tmp_path / "store", 0, as_lines(RECORDED))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(_ask, tmp_path / "store", tmp_path / "cache", 20) for _ in range(2)]
        one, two = (process.result(120) for process in asked)
    assert one == two == one[: len(TABLES)] * 20
    assert one[0] > 20


def test_two_builders_that_publish_at_once_leave_one_index_that_is_whole(tmp_path: Path) -> None:
    """Neither knows of the other: both succeed, and what is read is the work of one of them."""
    put(tmp_path, 0, as_lines(RECORDED))
    together = threading.Barrier(2, timeout=120)

    def build() -> Manifest:
        def wait_for_the_other(_: float, detail: str) -> None:
            if detail == "writing the index":
                together.wait()

        with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
            job = FoldJob(msgspec.to_builtins(settings_for(tmp_path)), REF, END, scratch)
            return asyncio.run(fold(job, wait_for_the_other))

    with ThreadPoolExecutor(2) as pool:
        made = [each.result() for each in [pool.submit(build), pool.submit(build)]]
    latest = asyncio.run(read_latest(LocalStore(tmp_path), Layout(), REF))
    assert latest in made
    assert len({manifest.build for manifest in made}) == latest.generation
    for manifest in made:
        assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'") == [(23,)]
