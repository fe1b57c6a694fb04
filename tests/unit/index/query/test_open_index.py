"""Queries on an open index: filters, sorts, pages, groups and the files that they read."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from rayhistory.errors import QueryFailed, StoreUnavailable, UsageError
from rayhistory.index.query import database, open_index
from rayhistory.index.query.database import execute
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query
from rayhistory.index.service.builder import IndexBuilder
from support.folding import END, NODE, REF, files_of, put_folded
from support.index_builder import settings_for, with_builder

pytestmark = pytest.mark.slow


def test_queries_filter_sort_page_and_group(tmp_path: Path) -> None:
    """Equality follows Ray: case is ignored, and NULL differs from every value."""
    put_folded(tmp_path)

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
def test_pages_by_cursor_equal_the_whole_list(tmp_path: Path, sort: tuple[str, ...]) -> None:
    """No row is missed or repeated, with equal and with missing values."""
    put_folded(tmp_path)

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
        (
            Filter("start_time_ms", "=", str(2**70)),
            f"start_time_ms cannot be compared with {2**70}: it does not fit into 64 bits",
        ),
        (Filter("worker_pid", "in", ["1", "x"]), "worker_pid is a number, not 'x'"),
        (Filter("defined", "=", "maybe"), "defined is a boolean, not 'maybe'"),
        (Filter("start_time_ms", "<", None), "start_time_ms < needs a value"),
        (Filter("name", "contains", "\udc80"), r"name cannot be compared with '\udc80': not valid Unicode"),
        (Filter("name", "like", "x"), "unknown operator 'like': use one of !=, <, <=, =, >, >=, contains, in, prefix"),
        (Filter("colour", "=", "x"), "table 'tasks' has no column 'colour': use one of task_id, attempt_number, name"),
    ],
)
def test_invalid_filter_raises_usage_error(tmp_path: Path, condition: Filter, message: str) -> None:
    """It is never taken for a damaged index, which would be rebuilt."""
    put_folded(tmp_path)

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        with pytest.raises(UsageError) as raised:
            await index.rows(Query("tasks", ("task_id",), (condition,)))
        assert str(raised.value).startswith(message)
        for table in ("merged.workers", "task_list", "nothing"):
            with pytest.raises(UsageError, match="use one of actor_transitions, actors, cluster_events"):
                await index.rows(Query(table))

    with_builder(settings_for(tmp_path), work)


def test_large_page_of_whole_rows_equals_small_pages(tmp_path: Path) -> None:
    """Large pages are read by their keys first."""
    put_folded(tmp_path)

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


def test_partitioned_index_returns_the_same_rows(tmp_path: Path) -> None:
    """Only partitions that can match are read."""
    single, partitioned = tmp_path / "single", tmp_path / "partitioned"
    for directory, memory in ((single, "1Gi"), (partitioned, "64Ki")):
        manifest = put_folded(directory, memory)
    assert len(manifest.files_of("tasks")) > 4
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
        results: list[object] = [rows]
        for filters in conditions:
            results.append(await index.count(Query("tasks", filters=filters)))
            results.append(await index.rows(Query("profile_events", (), filters, ("task_id", "attempt"), 5)))
            for sort in sorts:
                for limit in (1, 2_000):
                    query = Query("tasks", keys, filters, sort, limit)
                    starts = [None, *(query.position_of(ordered[sort][position]) for position in (3, 20))]
                    results += [await index.rows(msgspec.structs.replace(query, after=after)) for after in starts]
        found.append(results)

    for directory in (single, partitioned):
        with_builder(settings_for(directory), work)
    assert found[0] == found[1]


def test_only_matching_partitions_are_fetched(tmp_path: Path) -> None:
    manifest = put_folded(tmp_path, memory="64Ki")
    number = len(manifest.files_of("tasks"))

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)

        def cached_files() -> set[str]:
            return {path.name for path in (tmp_path / "cache").rglob("tasks.*.parquet")}

        [first] = await index.rows(Query("tasks", (), (), ("task_id",), limit=1))
        assert cached_files() == {"tasks.0.parquet"}
        drivers = (Filter("type", "=", "DRIVER_TASK"),)
        driver, *_ = await index.rows(Query("tasks", ("task_id",), drivers))
        assert await index.rows(Query("tasks", (), (Filter("task_id", "=", driver["task_id"]),)))
        assert cached_files() == {"tasks.0.parquet", f"tasks.{number - 1}.parquet"}
        assert len(await index.rows(Query("tasks", (), (), ("task_id",), limit=1_000))) > 20
        assert len(cached_files()) == number
        assert first["task_id"] < driver["task_id"]

    with_builder(settings_for(tmp_path), work)


@pytest.mark.parametrize("sort", [("task_id",), ("-start_time_ms",)])
@pytest.mark.parametrize("columns", [(), ("task_id", "attempt_number", "start_time_ms")])
def test_prefetched_tables_are_read_without_the_store(
    tmp_path: Path, sort: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    """Requests wait for the large-response lock, which must not wait for the store."""
    put_folded(tmp_path, memory="64Ki")

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        query = Query("tasks", columns, (), sort)
        await index.prefetch(query)
        (tmp_path / "ray-history").rename(tmp_path / "away")
        found = [row async for rows in index.batches(msgspec.structs.replace(query, limit=2)) for row in rows]
        assert len(found) == 2

    with_builder(settings_for(tmp_path), work)


def test_filter_values_may_be_text(tmp_path: Path) -> None:
    put_folded(tmp_path)

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)

        async def count(*filters: Filter) -> int:
            return await index.count(Query("tasks", filters=filters))

        assert await count(Filter("attempt_number", "=", "1")) == await count(Filter("attempt_number", "=", 1)) > 0
        assert await count(Filter("defined", "=", "false")) == await count(Filter("defined", "=", False)) == 2
        assert await count(Filter("start_time_ms", ">=", "0")) == await count(Filter("start_time_ms", "!=", None))

    with_builder(settings_for(tmp_path), work)


@pytest.mark.parametrize(("evictions", "is_served"), [(5, True), (1_000, False)])
def test_evicted_copy_is_fetched_again_and_is_not_damage(tmp_path: Path, evictions: int, is_served: bool) -> None:
    """Other processes may evict a copy between its download and its first read."""
    manifest = put_folded(tmp_path)
    remaining = evictions

    async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        nonlocal remaining
        remaining -= 1
        copies = [tmp_path / f"copy.{number}.parquet" for number in numbers]
        for source, copy in zip(files_of(tmp_path, manifest, name), copies, strict=True):
            copy.unlink(missing_ok=True)
            if remaining < 0:
                shutil.copy(source, copy)
        return copies

    counting = OpenIndex(manifest, fetch).count(Query("nodes"))
    if is_served:
        assert asyncio.run(counting) == 1
    else:
        with pytest.raises(StoreUnavailable, match="cache is too small"):
            asyncio.run(counting)


def test_error_of_a_query_is_no_damage_of_the_index(tmp_path: Path) -> None:
    """Only damage is a reason to rebuild: a value out of range would be found in every new index again."""
    put_folded(tmp_path)

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        for expression in ("node_ip::BIGINT", "9223372036854775807 + start_time_ms"):
            with pytest.raises(QueryFailed):
                await index.read(("nodes",), lambda source, sql=expression: execute(f"SELECT {sql} FROM {source}", []))
        assert await index.rows(Query("nodes"))

    with_builder(settings_for(tmp_path), work)


@pytest.mark.parametrize("sort", [("task_id",), ("-start_time_ms",)])
def test_batches_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort: tuple[str, ...]) -> None:
    put_folded(tmp_path)

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        whole = await index.rows(Query("tasks", sort=sort, limit=1000))
        monkeypatch.setattr(open_index, "_BATCH_BYTES", 1500)
        monkeypatch.setattr(database, "_FIRST_FETCH_ROWS", 2)
        batches = [list(batch) async for batch in index.batches(Query("tasks", sort=sort))]
        assert [row for batch in batches for row in batch] == whole
        assert 3 < len(batches) < len(whole)

    with_builder(settings_for(tmp_path), work)


def test_rows_are_written_to_a_directory_with_an_apostrophe(tmp_path: Path) -> None:
    put_folded(tmp_path)
    target = tmp_path / "it's" / "rows.parquet"
    target.parent.mkdir()

    async def work(builder: IndexBuilder) -> None:
        index = await builder.open(REF, END)
        await index.write_parquet(Query("tasks", ("name",)), target)

    with_builder(settings_for(tmp_path), work)
    assert target.stat().st_size > 0
