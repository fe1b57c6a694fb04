"""An index is built once, found again, extended, replaced when it is damaged, and never half there."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from folding import END, NODE, RECORDED, REF, as_lines, fold_session, put
from rayhistory.errors import DamagedIndex, FoldFailed, ObjectExists, StoreDenied, StoreUnavailable, UsageError
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.engine import Say
from rayhistory.index.fold import FoldJob
from rayhistory.index.manifest import MERGED, Manifest, read_latest
from rayhistory.index.overlay import Overlay
from rayhistory.index.places import Places
from rayhistory.index.query import Filter, OpenIndex, Query
from rayhistory.index.sources import list_sources
from rayhistory.layout import Layout
from rayhistory.settings import Settings, resolve
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore


def settings_for(directory: Path, **more: str) -> Settings:
    flags = {"setting_local_storage_dir": str(directory), "setting_cache_dir": str(directory / "cache")}
    return resolve("historyserver", flags | {f"setting_{name}": value for name, value in more.items()}, {})[0]


def with_builder(settings: Settings, work: Callable[[IndexBuilder], Awaitable[None]]) -> None:
    async def whole() -> None:
        builder = IndexBuilder(settings, open_store(settings), Layout())
        await work(builder)
        await builder.close()

    asyncio.run(whole())


async def count_tasks(index: OpenIndex) -> int:
    return await index.count(Query("tasks", filters=(Filter("type", "!=", "DRIVER_TASK"),)))


def test_a_session_is_folded_once_for_all_replicas(tmp_path: Path) -> None:
    """The second builder, with an empty cache of its own, finds what the first one left."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        assert index.manifest.generation == 1
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)
    with_builder(settings_for(tmp_path, cache_dir=str(tmp_path / "other")), work)


def test_visitors_at_the_same_time_share_one_fold(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        opened = await asyncio.gather(*(builder.open(REF, END) for _ in range(5)))
        assert {index.manifest.generation for index in opened} == {1}

    with_builder(settings_for(tmp_path), work)


def test_a_running_session_is_served_at_once_and_extended_behind(tmp_path: Path) -> None:
    """Opening does not wait for what is new; the next look sees it."""
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


def test_a_session_that_ends_is_closed_even_if_nothing_new_came(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        running = await builder.open(REF, None)
        assert (await running.rows(Query("nodes")))[0]["state"] == "ALIVE"
        ended = await builder.open(REF, END)
        assert (await ended.rows(Query("nodes")))[0]["state"] == "DEAD"

    with_builder(settings_for(tmp_path), work)


def test_copies_that_were_evicted_or_damaged_are_fetched_again(tmp_path: Path) -> None:
    """A visitor notices nothing."""
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


def test_the_cache_keeps_within_its_budget(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        for table in ("tasks", "actors", "workers", "jobs", "tasks"):
            assert await index.rows(Query(table))
        kept = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.parquet"))
        assert kept <= 30_000 + max(map(max, index.manifest.files.values()))

    with_builder(settings_for(tmp_path, cache_size="30000"), work)


def test_an_index_that_is_half_there_or_of_another_schema_does_not_exist(tmp_path: Path) -> None:
    """Only a readable manifest of this schema counts."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    store, layout = LocalStore(tmp_path), Layout()
    path = tmp_path / layout.manifest_key(REF, manifest.generation)
    good = path.read_bytes()
    for bad in (good[: len(good) // 2], good.replace(b'"schema":', b'"schema":9'), b""):
        path.write_bytes(bad)
        assert asyncio.run(read_latest(store, layout, REF)) is None

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        assert index.manifest.generation == 2
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)


def test_older_generations_are_removed_but_for_the_one_before(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, number, as_lines(RECORDED[number * 40 : (number + 1) * 40]))
        fold_session(tmp_path, None)
    names = {path.name for path in (tmp_path / Layout().index_prefix(REF)).glob("manifest-*")}
    assert names == {"manifest-3.json", "manifest-4.json"}


def test_an_outage_is_not_an_empty_session(tmp_path: Path) -> None:
    """A listing that fails is an error, and nothing is sealed."""

    class Broken(LocalStore):
        async def list_folder(self, prefix: str):  # type: ignore[no-untyped-def]
            raise StoreUnavailable("the store is away")

    with pytest.raises(StoreUnavailable):
        asyncio.run(list_sources(Broken(tmp_path), Layout(), REF))


class Failing:
    """An engine of which every fold fails."""

    def __init__(self) -> None:
        self.folds = 0

    async def fold(self, job: FoldJob, say: Say) -> Manifest:
        self.folds += 1
        raise FoldFailed("it is too much")


def test_what_cannot_be_folded_is_not_tried_again_by_everybody_who_asks(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    engine = Failing()

    async def ask() -> None:
        settings = settings_for(tmp_path)
        builder = IndexBuilder(settings, open_store(settings), Layout(), engine)
        for _ in range(3):
            with pytest.raises(FoldFailed, match="it is too much"):
                await builder.open(REF, END)
        await builder.close()

    asyncio.run(ask())
    assert engine.folds == 1


def test_small_sessions_do_not_wait_for_large_ones() -> None:
    """However many of those there are."""

    async def work() -> list[str]:
        places, done = Places(2), []

        async def large(number: int) -> None:
            async with places.taken(1 << 30):
                await small_ones
                done.append(f"large {number}")

        async def small() -> None:
            for _ in range(3):
                async with places.taken(1000):
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


def test_nothing_is_left_behind_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    async def work(builder: IndexBuilder) -> None:
        await builder.open(REF, END)

    with_builder(settings_for(tmp_path), work)
    assert list(scratch.iterdir()) == []


def test_queries_filter_sort_page_and_group(tmp_path: Path) -> None:
    """One layer for all routes: Ray's rules for = and !=, and more."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)

        async def names(*filters: Filter, sort: tuple[str, ...] = ("name",), limit: int | None = None) -> list[str]:
            query = Query("tasks", ("name",), (*filters, Filter("type", "!=", "DRIVER_TASK")), sort, limit)
            return [row["name"] for row in await index.rows(query)]

        assert await names(Filter("name", "=", "BOOM")) == ["boom"]
        assert set(await names(Filter("name", "contains", "OO"))) == {"boom"}
        assert set(await names(Filter("name", "prefix", "su"))) == {"suicide"}
        assert set(await names(Filter("name", "in", ["boom", "flaky"]))) == {"boom", "flaky"}
        assert len(await names(Filter("actor_id", "!=", "x"))) == 23
        assert await names(sort=("-start_time_ms",), limit=3) != await names(sort=("start_time_ms",), limit=3)
        assert await names(Filter("start_time_ms", ">", 10**15)) == []
        grouped = await index.group(Query("tasks"), ("state",))
        assert {row["state"] for row in grouped} == {"FINISHED", "FAILED"}
        node = (await index.rows(Query("nodes")))[0]
        assert node["node_id"] == NODE

    with_builder(settings_for(tmp_path), work)


@pytest.mark.parametrize(
    "sort",
    [
        ("task_id",),
        ("state",),
        ("-start_time_ms",),
        ("node_id", "-name"),
        ("-error_type", "task_id"),
        ("name", "-name"),
    ],
)
def test_pages_by_cursor_are_the_whole_list_in_its_order(tmp_path: Path, sort: tuple[str, ...]) -> None:
    """However many rows are alike, and whether values are absent or not: none is missed, none comes twice."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        names = tuple(name.lstrip("-") for name in Query("tasks", sort=sort).order)
        assert len(set(names)) == len(names)
        whole = await index.rows(Query("tasks", names, (), sort, limit=1000))
        after, pages = None, []
        while page := await index.rows(Query("tasks", names, (), sort, limit=4, after=after)):
            pages += page
            after = tuple(page[-1].values())
        assert len(pages) > 20
        assert pages == whole

    with_builder(settings_for(tmp_path), work)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Filter("start_time_ms", ">", "soon"), "start_time_ms is a number, not 'soon'"),
        (Filter("start_time_ms", "=", str(2**70)), f"start_time_ms is never as large as {2**70}"),
        (Filter("worker_pid", "in", ["1", "x"]), "worker_pid is a number, not 'x'"),
        (Filter("defined", "=", "maybe"), "defined is true or false, not 'maybe'"),
        (Filter("start_time_ms", "<", None), "start_time_ms < needs a value"),
        (Filter("name", "contains", "\udc80"), r"name cannot be compared with '\udc80': that is no text"),
        (Filter("name", "like", "x"), "unknown operator 'like': use one of !=, <, <=, =, >, >=, contains, in, prefix"),
        (Filter("colour", "=", "x"), "table 'tasks' has no column 'colour': there are task_id, attempt_number, name"),
    ],
)
def test_nonsense_in_a_filter_is_a_mistake_of_the_asker(tmp_path: Path, condition: Filter, message: str) -> None:
    """And never looks like a damaged index, which would be built again."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        with pytest.raises(UsageError) as raised:
            await index.rows(Query("tasks", ("task_id",), (condition,)))
        assert str(raised.value).startswith(message)
        for table in ("merged.workers", "task_list", "nothing"):
            with pytest.raises(UsageError, match="there are actor_transitions, actors, cluster_events"):
                await index.rows(Query(table))

    with_builder(settings_for(tmp_path), work)


def test_a_large_page_of_whole_rows_is_that_of_small_ones(tmp_path: Path) -> None:
    """It is cut by its keys first; nothing of that is seen."""
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        for columns in ((), ("language", "name"), ("name",)):
            for sort in (("-start_time_ms",), ("error_message", "-name"), ("task_id", "-attempt_number")):
                small = await index.rows(Query("tasks", columns, (), sort, limit=1_000))
                assert await index.rows(Query("tasks", columns, (), sort, limit=10_000)) == small
                assert len(small) > 20
        assert await index.rows(Query("tasks", (), (Filter("name", "=", "none"),), ("name",), limit=10_000)) == []
        many = [f"{number:048x}" for number in range(100)] + [small[0]["name"]]
        assert await index.count(Query("tasks", (), (Filter("name", "in", many),))) > 0
        assert await index.count(Query("tasks", (), (Filter("name", "in", []),))) == 0

    with_builder(settings_for(tmp_path), work)


def test_an_index_in_parts_answers_like_one_in_a_piece(tmp_path: Path) -> None:
    """Though only those files are looked into that can have what is asked for."""
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for directory, memory in ((whole, "1Gi"), (parted, "64Ki")):
        put(directory, 0, as_lines(RECORDED))
        manifest = fold_session(directory, memory=memory)
    assert len(manifest.files["tasks"]) > 4
    keys = ("task_id", "attempt_number")
    found: list[list[object]] = []

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        rows = await index.rows(Query("tasks", keys, sort=keys))
        ids = [row["task_id"] for row in rows]
        conditions: list[tuple[Filter, ...]] = [
            (),
            (Filter("job_id", "!=", "boom"),),
            (Filter("task_id", "=", ids[0].upper()),),
            (Filter("task_id", "in", [ids[2], ids[-1]]),),
            (Filter("task_id", "in", []),),
            (Filter("task_id", ">=", ids[5]), Filter("task_id", "<", ids[-4])),
            (Filter("task_id", ">", ids[-5]), Filter("task_id", "<=", ids[2])),
            (Filter("task_id", ">", "A"),),
            (Filter("task_id", "prefix", ids[3][:2]),),
            (Filter("task_id", "!=", ids[3]),),
            (Filter("task_id", "=", None),),
        ]
        sorts = (("task_id",), ("-task_id",), ("task_id", "-attempt_number"), ("-start_time_ms",))
        ordered = {sort: await index.rows(Query("tasks", (), (), sort, limit=100)) for sort in sorts}
        answers: list[object] = [rows]
        for filters in conditions:
            answers.append(await index.count(Query("tasks", filters=filters)))
            answers.append(await index.rows(Query("profile_events", (), filters, ("task_id", "attempt"), 5)))
            for sort in sorts:
                for limit in (1, 2_000):
                    query = Query("tasks", keys, filters, sort, limit)
                    starts = [None, *(query.place_of(ordered[sort][place]) for place in (3, 20))]
                    answers += [await index.rows(msgspec.structs.replace(query, after=after)) for after in starts]
        found.append(answers)

    for directory in (whole, parted):
        with_builder(settings_for(directory), work)
    assert found[0] == found[1]


def test_only_those_files_are_fetched_that_can_have_the_tasks(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path, memory="64Ki")
    number = len(manifest.files["tasks"])

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)

        def fetched() -> set[str]:
            return {path.name for path in (tmp_path / "cache").rglob("tasks.*.parquet")}

        [first] = await index.rows(Query("tasks", (), (), ("task_id",), limit=1))
        assert fetched() == {"tasks.0.parquet"}
        drivers = (Filter("type", "=", "DRIVER_TASK"),)
        driver, *_ = await index.rows(Query("tasks", ("task_id",), drivers))
        assert await index.rows(Query("tasks", (), (Filter("task_id", "=", driver["task_id"]),)))
        assert fetched() == {"tasks.0.parquet", f"tasks.{number - 1}.parquet"}
        assert len(await index.rows(Query("tasks", (), (), ("task_id",), limit=1_000))) > 20
        assert len(fetched()) == number
        assert first["task_id"] < driver["task_id"]

    with_builder(settings_for(tmp_path), work)


@pytest.mark.parametrize("sort", [("task_id",), ("-start_time_ms",)])
@pytest.mark.parametrize("columns", [(), ("task_id", "attempt_number", "start_time_ms")])
def test_what_was_fetched_is_read_without_the_store(
    tmp_path: Path, sort: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    """Others wait while a large answer is made: it must not wait for the store then."""
    put(tmp_path, 0, as_lines(RECORDED))
    fold_session(tmp_path, memory="64Ki")

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        query = Query("tasks", columns, (), sort)
        await index.fetched(query)
        (tmp_path / "ray-history").rename(tmp_path / "away")
        found = [row async for rows in index.portions(msgspec.structs.replace(query, limit=2)) for row in rows]
        assert len(found) == 2

    with_builder(settings_for(tmp_path), work)


def test_values_of_filters_may_be_text(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)

        async def count(*filters: Filter) -> int:
            return await index.count(Query("tasks", filters=filters))

        assert await count(Filter("attempt_number", "=", "1")) == await count(Filter("attempt_number", "=", 1)) > 0
        assert await count(Filter("defined", "=", "false")) == await count(Filter("defined", "=", False)) == 2
        assert await count(Filter("start_time_ms", ">=", "0")) == await count(Filter("start_time_ms", "!=", None))

    with_builder(settings_for(tmp_path), work)


def test_a_store_that_refuses_writes_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index then lives in the local cache, and is found there again."""

    class ReadOnly(LocalStore):
        async def put(self, key: str, data: bytes | Path) -> None:
            raise StoreDenied("read-only")

        async def create(self, key: str, data: bytes) -> None:
            raise StoreDenied("read-only")

    async def work() -> None:
        overlay = Overlay(ReadOnly(tmp_path / "store"), tmp_path / "beside", 10**9)
        await overlay.put("a/b", b"1")
        await overlay.create("a/c", b"2")
        with pytest.raises(ObjectExists):
            await overlay.create("a/c", b"3")
        assert await overlay.get("a/b") == b"1"
        assert [info.key async for info in overlay.list_all("a")] == ["a/b", "a/c"]
        assert [info.key for info in (await overlay.list_folder("a")).objects] == ["a/b", "a/c"]
        assert not list((tmp_path / "store").rglob("*"))
        shutil.rmtree(tmp_path / "beside")  # a cache may be cleared
        assert [info.key async for info in overlay.list_all("a")] == []
        await overlay.put("a/b", b"1")
        assert await overlay.get("a/b") == b"1"

    asyncio.run(work())


def rot(path: Path) -> None:
    """The right size, and half of it other bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))


def test_a_session_whose_merged_tables_rot_is_extended_from_its_events(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:50]))
    manifest = fold_session(tmp_path)
    for path in (tmp_path / Layout().index_prefix(REF) / manifest.build).glob(f"{MERGED}*.parquet"):
        rot(path)
    put(tmp_path, 1, as_lines(RECORDED[50:]))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END, 120, extend=True)
        assert (index.manifest.generation, index.manifest.events) == (2, len(RECORDED))
        assert await count_tasks(index) == 23

    with_builder(settings_for(tmp_path), work)


def test_a_moment_is_made_though_a_copy_or_the_index_rots(tmp_path: Path) -> None:
    """A copy is fetched again; when that is no better, the index is damaged and is to be built again."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    assert manifest.first_ns
    assert manifest.last_ns
    middle_ms = (manifest.first_ns + manifest.last_ns) // 2 // 10**6

    async def work(builder: IndexBuilder) -> None:
        wanted = await count_tasks(await builder.open_as_of(REF, END, middle_ms, 120))
        (copy,) = (tmp_path / "cache").rglob(f"{MERGED}driver_jobs.0.parquet")
        rot(copy)
        assert await count_tasks(await builder.open_as_of(REF, END, middle_ms - 1, 120)) == wanted
        rot(copy)
        (kept,) = (tmp_path / Layout().index_prefix(REF) / manifest.build).glob(f"{MERGED}driver_jobs*")
        rot(kept)
        with pytest.raises(DamagedIndex):
            await count_tasks(await builder.open_as_of(REF, END, middle_ms - 2, 120))
        await builder.open(REF, END, 120, rebuild=True)
        assert await count_tasks(await builder.open_as_of(REF, END, middle_ms - 2, 120)) == wanted

    with_builder(settings_for(tmp_path), work)


def test_a_moment_of_a_session_without_any_time_of_its_own_is_not_its_end(tmp_path: Path) -> None:
    """Its events do not say when they were sent; what is in them has times all the same."""
    put(tmp_path, 0, as_lines([event | {"timestamp": ""} for event in RECORDED]))
    finished = Query("tasks", filters=(Filter("state", "=", "FINISHED"),))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, None, 120)
        assert index.manifest.last_ns is None
        assert await index.count(finished)
        before = await builder.open_as_of(REF, None, 1_794_770_300_000, 120)
        assert await before.count(finished) == 0

    with_builder(settings_for(tmp_path), work)


def test_an_index_that_rots_in_the_store_is_built_from_the_events_again(tmp_path: Path) -> None:
    """Files of the right size with other bytes in them, served and merged: nothing of that generation is taken."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    for path in (tmp_path / Layout().index_prefix(REF) / manifest.build).glob("*.parquet"):
        path.write_bytes(os.urandom(path.stat().st_size))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        with pytest.raises(DamagedIndex):
            await count_tasks(index)
        rebuilt = await builder.open(REF, END, rebuild=True)
        assert await count_tasks(rebuilt) == 23

    with_builder(settings_for(tmp_path), work)
