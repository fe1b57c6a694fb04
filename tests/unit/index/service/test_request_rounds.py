"""Opening and folding sessions costs few requests in sequence, because each waits for the store."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from rayhistory.index.fold import fold_process, parallel_decode
from rayhistory.index.fold.fold_process import FoldJob
from rayhistory.index.fold.sources import list_sources
from rayhistory.index.manifest import Manifest
from rayhistory.index.query.query import Query
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from support.folding import END, RECORDED, REF, as_lines, fold_session, put, settings_for
from support.request_rounds import RoundsStore

pytestmark = pytest.mark.slow

LAYOUT = Layout()
NODES = [f"{number:02x}" * 28 for number in range(6)]


def put_objects(directory: Path, count: int, start: int = 0) -> None:
    """Write objects of several nodes."""
    for number in range(start, start + count):
        node = NODES[number % len(NODES)]
        key = LAYOUT.events_key(REF, node, "node_events", 1_794_770_300_000_000_000 + number, compressed=False)
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_lines(RECORDED[number % 50 : number % 50 + 5]))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RoundsStore:
    rounds_store = RoundsStore(tmp_path / "store")
    monkeypatch.setattr(fold_process, "open_store", lambda settings: rounds_store)
    monkeypatch.setattr(parallel_decode, "open_store", lambda settings: rounds_store)
    return rounds_store


def test_first_page_of_an_indexed_session_takes_three_requests_in_sequence(tmp_path: Path) -> None:
    """List the generations, read the manifest, fetch the table."""
    put(tmp_path / "store", 0, as_lines(RECORDED))
    fold_session(tmp_path / "store")
    store = RoundsStore(tmp_path / "store")

    async def work() -> None:
        builder = IndexBuilder(settings_for(tmp_path / "store", cache=tmp_path / "cache"), store, LAYOUT)
        index = await builder.open(REF, END)
        rows = await index.rows(Query("tasks", limit=10))
        page = [each for each in store.requests if "/index/" in each[1]]
        await builder.close()
        assert rows
        assert max(number for number, _ in page) <= 3, store.requests

    asyncio.run(work())


def test_listing_the_sources_of_many_nodes_takes_few_requests_in_sequence(store: RoundsStore, tmp_path: Path) -> None:
    put_objects(tmp_path / "store", 12)
    sources = asyncio.run(list_sources(store, LAYOUT, REF))
    assert len(sources) == 12
    assert store.rounds <= 3, store.requests


class InProcessEngine:
    async def fold(self, job: FoldJob, *_: object) -> Manifest:
        return await fold_process.fold(job, lambda progress, detail: None)


def fold_rounds(store: RoundsStore, tmp_path: Path, closing: Closing | None = END) -> tuple[int, int]:
    """Fold what is new; return the rounds of requests, and the requests that read events."""

    async def work() -> tuple[int, int]:
        settings = settings_for(tmp_path / "store", cache=tmp_path / "cache")
        sources = await list_sources(store, LAYOUT, REF)
        scratch = tmp_path / f"scratch-{len(sources)}"
        scratch.mkdir()
        store.reset()
        job = FoldJob(msgspec.to_builtins(settings), REF, closing, str(scratch), sources=sources)
        await InProcessEngine().fold(job)
        return store.rounds, len(
            [what for _, what in store.requests if what.startswith("get") and "node_events" in what]
        )

    return asyncio.run(work())


def test_rounds_of_a_fold_do_not_grow_with_the_objects(store: RoundsStore, tmp_path: Path) -> None:
    put_objects(tmp_path / "store", 4)
    few, _ = fold_rounds(store, tmp_path)
    put_objects(tmp_path / "store", 60, start=100)
    many, reads = fold_rounds(store, tmp_path)
    assert reads == 60, "each new object is read once, by one request"
    assert store.most_in_flight >= 32
    assert many <= few + 6, store.requests


def published_in_round(store: RoundsStore) -> int:
    return next(number for number, what in store.requests if what.startswith("create ") and "manifest" in what)


def test_fold_publishes_after_few_requests_in_sequence(store: RoundsStore, tmp_path: Path) -> None:
    """Limits have one more than needed, because on a busy machine a request may begin late."""
    put_objects(tmp_path / "store", 4)
    fold_rounds(store, tmp_path, closing=None)
    assert published_in_round(store) <= 4 + 1, "list generations, read events, write files, write the manifest"
    put_objects(tmp_path / "store", 4, start=100)
    fold_rounds(store, tmp_path, closing=None)
    assert published_in_round(store) <= 6 + 1, "in addition: read the manifest, and the previous tables"


def test_first_open_and_extension_publish_after_few_requests_in_sequence(store: RoundsStore, tmp_path: Path) -> None:
    """From the listing of the session and the lease of the server to the manifest."""

    async def work() -> None:
        settings = settings_for(tmp_path / "store", cache=tmp_path / "cache")
        builder = IndexBuilder(settings, store, LAYOUT, engine=InProcessEngine())
        for extend, rounds in ((False, 10 + 2), (True, 13 + 2)):
            put_objects(tmp_path / "store", 4, start=100 * extend)
            builder.forget(REF)
            store.reset()
            await builder.open(REF, None, extend=extend)
            assert published_in_round(store) <= rounds, store.requests
        await builder.close()

    asyncio.run(work())
