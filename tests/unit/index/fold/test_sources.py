"""The sources of a running session are listed once per fold and passed on."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.index.fold import fold_process, parallel_decode
from rayhistory.index.fold.fold_process import FoldJob
from rayhistory.index.fold.sources import Source, SourceKind, list_sources, sources_digest, unread_sources
from rayhistory.index.manifest import Manifest
from rayhistory.index.service import builder as index_builder
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions import Layout
from support.counting_store import CountingStore
from support.folding import RECORDED, REF, as_lines, put, settings_for

LAYOUT = Layout()


class InProcessEngine:
    """Folds in this process, so that its listings are counted."""

    def __init__(self) -> None:
        self.jobs: list[FoldJob] = []

    async def fold(self, job: FoldJob, *_: object) -> Manifest:
        self.jobs.append(job)
        return await fold_process.fold(job, lambda progress, detail: None)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    counting = CountingStore(tmp_path / "store")
    monkeypatch.setattr(fold_process, "open_store", lambda settings: counting)
    monkeypatch.setattr(parallel_decode, "open_store", lambda settings: counting)
    return counting


def source_listings(store: CountingStore) -> set[int]:
    """How often each prefix with sources was listed; the index and its leases are no sources."""
    index = LAYOUT.index_prefix(REF)
    return {count for prefix, count in store.listings.items() if not prefix.startswith(index) and "lease" not in prefix}


@pytest.mark.slow
def test_each_fold_lists_the_sources_once(tmp_path: Path, store: CountingStore) -> None:
    engine = InProcessEngine()
    builder = IndexBuilder(settings_for(tmp_path / "store", cache=tmp_path / "cache"), store, LAYOUT, engine)
    put(tmp_path / "store", 0, as_lines(RECORDED[:50]))

    async def extend() -> int:
        builder.forget(REF)
        store.listings.clear()
        return (await builder.open(REF, None, extend=True)).manifest.events

    async def work() -> None:
        assert await extend() == 50
        assert source_listings(store) == {1}
        await store.put(
            LAYOUT.events_key(REF, "ab" * 28, "node_events", 1, compressed=False), as_lines(RECORDED[50:60])
        )
        assert await extend() == 60
        assert source_listings(store) == {1}, "the comparison with the store and the fold share a listing"
        assert await extend() == 60
        assert source_listings(store) == {1}
        await builder.close()

    asyncio.run(work())
    assert [len(job.sources or []) for job in engine.jobs] == [1, 2]


def test_outdated_listing_is_not_passed_on(
    tmp_path: Path, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold can wait long for its slot."""
    monkeypatch.setattr(index_builder, "_MAX_LISTING_AGE_S", -1.0)
    builder = IndexBuilder(settings_for(tmp_path / "store", cache=tmp_path / "cache"), store, LAYOUT, InProcessEngine())
    put(tmp_path / "store", 0, as_lines(RECORDED[:50]))
    asyncio.run(builder.open(REF, None))
    assert source_listings(store) == {2}


def test_only_changed_sources_are_unread() -> None:
    events = Source("a.jsonl", 10, SourceKind.EVENTS)
    packed = Source("packs#1.wal", 100, SourceKind.PACKED_EVENTS)
    endpoint = Source("endpoint", 10, SourceKind.ENDPOINT, modified=2.0)
    seal = Source("seal", 10, SourceKind.SEAL, modified=2.0)
    sources = [events, packed, endpoint, seal]
    assert unread_sources(sources, []) == sources[:3]
    assert unread_sources(sources, [(source.key, source.version) for source in sources]) == []
    (appended,) = unread_sources([packed], [(packed.key, 60)])
    assert (appended.start, appended.size) == (60, 100)
    assert unread_sources([endpoint], [(endpoint.key, 10 + 1000)]) == [endpoint], "overwritten with the same size"


def test_digest_changes_with_every_source(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    digests = set()
    for number in range(3):
        put(tmp_path, number, as_lines(RECORDED[:1]))
        digests.add(sources_digest(asyncio.run(list_sources(store, LAYOUT, REF))))
    assert len(digests) == 3
