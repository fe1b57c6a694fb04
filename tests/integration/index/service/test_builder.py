"""An index is built once, reused, extended, rebuilt when damaged, and never partly visible."""

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from rayhistory.errors import IndexDamaged, IndexFailed, ObjectExists, StoreDenied, StoreUnavailable
from rayhistory.index.fold.fold_process import FoldJob
from rayhistory.index.fold.sources import list_sources
from rayhistory.index.manifest import MERGED_PREFIX, Manifest, read_latest_manifest
from rayhistory.index.overlay import Overlay
from rayhistory.index.query.database import connection
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.index.service.fold_engine import ReportProgress
from rayhistory.index.service.slots import Slots
from rayhistory.sessions import Layout
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from support.folding import END, RECORDED, REF, as_lines, fold_session, put
from support.index_builder import settings_for, with_builder


async def count_tasks(index: OpenIndex) -> int:
    return await index.count(Query("tasks", filters=(Filter("type", "!=", "DRIVER_TASK"),)))


def test_session_is_folded_once_for_all_replicas(tmp_path: Path) -> None:
    """A second builder with an empty cache finds the index of the first."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        assert index.manifest.generation == 1
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)
    with_builder(settings_for(tmp_path, cache_dir=str(tmp_path / "other")), work)


def test_concurrent_requests_share_one_fold(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        opened = await asyncio.gather(*(builder.open(REF, END) for _ in range(5)))
        assert {index.manifest.generation for index in opened} == {1}

    with_builder(settings_for(tmp_path), work)


def test_running_session_is_served_at_once_and_extended_in_background(tmp_path: Path) -> None:
    """Opening does not wait for new objects; a later open sees them."""
    put(tmp_path, 0, as_lines(RECORDED[:50]))

    async def work(builder: IndexBuilder) -> None:
        assert (await builder.open(REF, None)).manifest.events == 50
        await asyncio.to_thread(put, tmp_path, 1, as_lines(RECORDED[50:]))
        extended = await builder.open(REF, None, extend=True)
        while extended.manifest.generation == 1:
            await asyncio.sleep(0.2)
            builder.forget(REF)
            extended = await builder.open(REF, None, extend=True)
        assert extended.manifest.events == len(RECORDED)

    with_builder(settings_for(tmp_path), work)


def test_ended_session_is_folded_again_without_new_objects(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        running = await builder.open(REF, None)
        assert (await running.rows(Query("nodes")))[0]["state"] == "ALIVE"
        ended = await builder.open(REF, END)
        assert (await ended.rows(Query("nodes")))[0]["state"] == "DEAD"

    with_builder(settings_for(tmp_path), work)


def test_evicted_or_damaged_copies_are_fetched_again(tmp_path: Path) -> None:
    """Queries succeed as before."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        assert await count_tasks(index) == 23
        (copy,) = (tmp_path / "cache").rglob("task_list.0.parquet")
        copy.unlink()
        assert await count_tasks(index) == 23
        size = copy.stat().st_size
        copy.write_bytes(os.urandom(size))
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)


def test_cache_stays_within_its_budget(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        for table in ("tasks", "actors", "workers", "jobs", "tasks"):
            assert await index.rows(Query(table))
        cached = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.parquet"))
        assert cached <= 30_000 + max(file.size for _, file in index.manifest.all_files())

    with_builder(settings_for(tmp_path, cache_size="30000"), work)


def test_damaged_manifest_or_other_schema_counts_as_no_index(tmp_path: Path) -> None:
    """Only a readable manifest of this schema counts."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    store, layout = LocalStore(tmp_path), Layout()
    path = tmp_path / layout.manifest_key(REF, manifest.generation)
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], good.replace(b'"schema":', b'"schema":9'), b""):
        path.write_bytes(bad)
        assert asyncio.run(read_latest_manifest(store, layout, REF)) is None

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        assert index.manifest.generation == 2
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)


def test_only_the_last_two_generations_are_stored(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, number, as_lines(RECORDED[number * 40 : (number + 1) * 40]))
        fold_session(tmp_path, None)
    names = {path.name for path in (tmp_path / Layout().index_prefix(REF)).glob("manifest-*")}
    assert names == {"manifest-3.json", "manifest-4.json"}


def test_releases_with_other_schemas_keep_their_own_indexes(tmp_path: Path) -> None:
    """Each release reads its own latest generation, and deletes none that the other may read."""

    def publish_as_other_release(manifest: Manifest, generation: int) -> None:
        index = tmp_path / Layout().index_prefix(REF)
        shutil.copytree(index / manifest.build, index / f"{generation}-other")
        folder = f"{generation}-other"
        other = msgspec.structs.replace(manifest, schema=999, generation=generation, build=folder, folders=[])
        (index / f"manifest-{generation}.json").write_bytes(msgspec.json.encode(other))

    def opened_generation() -> int:
        opened: list[int] = []

        async def work(builder: IndexBuilder) -> None:
            opened.append((await builder.open(REF, END, extend=True)).manifest.generation)

        with_builder(settings_for(tmp_path), work)
        return opened[0]

    put(tmp_path, 0, as_lines(RECORDED[:40]))
    first = fold_session(tmp_path)
    publish_as_other_release(first, 2)
    assert opened_generation() == 1
    for number in (3, 4, 5):
        put(tmp_path, number, as_lines(RECORDED[40 * number : 40 * (number + 1)]))
        assert opened_generation() == number
    index = tmp_path / Layout().index_prefix(REF)
    assert {path.name for path in index.glob("manifest-*")} == {f"manifest-{number}.json" for number in (2, 4, 5)}
    folders = {path.parent.name.partition("-")[0] for path in index.glob("*/tasks.0.parquet")}
    assert folders == {"1", "2", "3", "4"}, "later generations use the parts of earlier ones; the last has no tasks"


def test_outage_is_not_an_empty_session(tmp_path: Path) -> None:
    """A failed listing is an error, and nothing is published."""

    class UnavailableStore(LocalStore):
        async def list_folder(self, prefix: str):  # type: ignore[no-untyped-def]
            raise StoreUnavailable("no connection")

    with pytest.raises(StoreUnavailable):
        asyncio.run(list_sources(UnavailableStore(tmp_path), Layout(), REF))


class FailingEngine:
    """An engine whose folds all fail."""

    def __init__(self) -> None:
        self.folds = 0

    async def fold(self, job: FoldJob, report_progress: ReportProgress) -> Manifest:
        self.folds += 1
        raise IndexFailed("out of memory")


def test_failed_fold_is_not_retried_by_every_request(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    engine = FailingEngine()

    async def open_three_times() -> None:
        settings = settings_for(tmp_path)
        builder = IndexBuilder(settings, open_store(settings), Layout(), engine)
        for _ in range(3):
            with pytest.raises(IndexFailed, match="out of memory"):
                await builder.open(REF, END)
        await builder.close()

    asyncio.run(open_three_times())
    assert engine.folds == 1


def test_small_sessions_do_not_wait_for_large_ones() -> None:
    """One slot is reserved for small sessions, however many large ones wait."""

    async def work() -> list[str]:
        slots, done = Slots(2), []

        async def large(number: int) -> None:
            async with slots.acquire(1 << 30):
                await small_ones
                done.append(f"large {number}")

        async def small() -> None:
            for _ in range(3):
                async with slots.acquire(1000):
                    done.append("small")

        small_ones = asyncio.get_running_loop().create_future()
        large_ones = [asyncio.create_task(large(number)) for number in range(3)]
        await asyncio.sleep(0)
        await small()
        small_ones.set_result(None)
        async with asyncio.timeout(60):
            await asyncio.gather(*large_ones)
        return done

    assert asyncio.run(work()) == ["small"] * 3 + ["large 0", "large 1", "large 2"]


def test_fold_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    async def work(builder: IndexBuilder) -> None:
        await builder.open(REF, END)

    with_builder(settings_for(tmp_path), work)
    assert list(scratch.iterdir()) == []


def test_overlay_stores_locally_if_writes_are_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects in the local cache are found again."""

    class ReadOnlyStore(LocalStore):
        async def put(self, key: str, data: bytes | Path) -> None:
            raise StoreDenied("read-only")

        async def create(self, key: str, data: bytes) -> None:
            raise StoreDenied("read-only")

    async def work() -> None:
        overlay = Overlay(ReadOnlyStore(tmp_path / "store"), tmp_path / "local-indexes", 10**9)
        await overlay.put("a/b", b"1")
        await overlay.create("a/c", b"2")
        with pytest.raises(ObjectExists):
            await overlay.create("a/c", b"3")
        assert await overlay.get("a/b") == b"1"
        assert [info.key async for info in overlay.list_all("a")] == ["a/b", "a/c"]
        assert [info.key for info in (await overlay.list_folder("a")).objects] == ["a/b", "a/c"]
        assert not list((tmp_path / "store").rglob("*"))
        shutil.rmtree(tmp_path / "local-indexes")  # a cache may be cleared
        assert [info.key async for info in overlay.list_all("a")] == []
        await overlay.put("a/b", b"1")
        assert await overlay.get("a/b") == b"1"

    asyncio.run(work())


def corrupt(path: Path) -> None:
    """Overwrite half of a file without changing its size."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))


def test_corrupt_merged_tables_cause_a_full_fold(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:50]))
    manifest = fold_session(tmp_path)
    for path in (tmp_path / Layout().index_prefix(REF) / manifest.build).glob(f"{MERGED_PREFIX}*.parquet"):
        corrupt(path)
    put(tmp_path, 1, as_lines(RECORDED[50:]))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END, 120, extend=True)
        assert (index.manifest.generation, index.manifest.events) == (2, len(RECORDED))
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)


def test_as_of_view_survives_corrupt_copies_and_reports_a_corrupt_index(tmp_path: Path) -> None:
    """A corrupt copy is fetched again; a corrupt index is reported as damaged and can be rebuilt."""
    # DuckDB keeps what it read from a file, and does not notice a change of it within the same second.
    connection().execute("SET enable_external_file_cache = false")
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    assert manifest.first_ns
    assert manifest.last_ns
    middle_ms = (manifest.first_ns + manifest.last_ns) // 2 // 10**6

    async def work(builder: IndexBuilder) -> None:
        expected = await count_tasks(await builder.open_as_of(REF, END, middle_ms, 120))
        (copy,) = (tmp_path / "cache").rglob("tasks.0.parquet")
        corrupt(copy)
        assert await count_tasks(await builder.open_as_of(REF, END, middle_ms - 20, 120)) == expected
        copy.unlink()
        (stored,) = (tmp_path / Layout().index_prefix(REF) / manifest.build).glob("tasks.*")
        corrupt(stored)
        with pytest.raises(IndexDamaged):
            await count_tasks(await builder.open_as_of(REF, END, middle_ms - 40, 120))
        await builder.open(REF, END, 120, rebuild=True)
        assert await count_tasks(await builder.open_as_of(REF, END, middle_ms - 40, 120)) == expected

    with_builder(settings_for(tmp_path), work)


def test_page_by_id_as_of_a_time_builds_only_the_parts_that_it_needs(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path, memory="64Ki")
    files = len(manifest.files_of("tasks"))
    assert files > 4
    assert manifest.first_ns
    assert manifest.last_ns
    middle_ms = (manifest.first_ns + manifest.last_ns) // 2 // 10**6

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open_as_of(REF, END, middle_ms, 120)
        (first,) = await index.rows(Query("tasks", sort=("task_id",), limit=1))
        built = [path.name for path in (tmp_path / "cache").rglob("tasks.*.parquet")]
        everything = await index.rows(Query("tasks", sort=("task_id",)))
        last = everything[-1]
        (found,) = await index.rows(Query("tasks", filters=(Filter("task_id", "=", last["task_id"]),)))
        assert built
        assert len(built) < files
        assert (first, found) == (everything[0], last)
        assert first["task_id"] != last["task_id"]

    with_builder(settings_for(tmp_path), work)


def test_as_of_view_of_a_session_without_event_timestamps(tmp_path: Path) -> None:
    """Its events have no time of their own, but their contents do."""
    put(tmp_path, 0, as_lines([event | {"timestamp": ""} for event in RECORDED]))
    finished = Query("tasks", filters=(Filter("state", "=", "FINISHED"),))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, None, 120)
        assert index.manifest.last_ns is None
        assert await index.count(finished)
        before = await builder.open_as_of(REF, None, 1_794_770_300_000, 120)
        assert await before.count(finished) == 0

    with_builder(settings_for(tmp_path), work)


def test_corrupt_index_in_the_store_is_rebuilt_from_events(tmp_path: Path) -> None:
    """Corrupt files of the right size are noticed in served and merged tables."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    for path in (tmp_path / Layout().index_prefix(REF) / manifest.build).glob("*.parquet"):
        path.write_bytes(os.urandom(path.stat().st_size))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        with pytest.raises(IndexDamaged):
            await count_tasks(index)
        rebuilt = await builder.open(REF, END, rebuild=True)
        assert await count_tasks(rebuilt) == 23

    with_builder(settings_for(tmp_path), work)
