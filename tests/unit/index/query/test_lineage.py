"""The lineage tree by SQL: equal to a plain reference, with exact counts and a bounded number of nodes."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.events.table_columns import TASK_STATES
from rayhistory.index.manifest import SCHEMA_VERSION, Manifest, SessionCounts, StoredFile
from rayhistory.index.query import lineage
from rayhistory.index.query.lineage import MAX_DEPTH, LineageTree, read_lineage
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter
from rayhistory.server.ray_api.nested_summary import NestedTaskSummary, nested_summaries
from support.lineage_reference import lineage as reference

Row = dict[str, Any]

DRIVER = "f" * 40 + "01000000"
TASK_TYPES = {
    "task_id": "VARCHAR", "attempt_number": "BIGINT", "name": "VARCHAR", "func_or_class_name": "VARCHAR",
    "type": "VARCHAR", "parent_task_id": "VARCHAR", "actor_id": "VARCHAR", "state": "VARCHAR",
    "creation_time_ms": "BIGINT",
}  # fmt: skip
ACTOR_TYPES = {"actor_id": "VARCHAR", "repr_name": "VARCHAR", "class_name": "VARCHAR"}


def task(task_id: str, parent: str | None = DRIVER, **more: Any) -> Row:
    return {
        "task_id": task_id, "attempt_number": 0, "name": task_id, "func_or_class_name": task_id,
        "type": "NORMAL_TASK", "parent_task_id": parent, "actor_id": None, "state": "FINISHED", "creation_time_ms": 1,
    } | more  # fmt: skip


def creation(task_id: str, actor: str, parent: str | None = DRIVER, **more: Any) -> Row:
    fields = {
        "type": "ACTOR_CREATION_TASK",
        "actor_id": actor,
        "name": "A.__init__",
        "func_or_class_name": "A.__init__",
    }
    return task(task_id, parent, **fields, **more)


def write(path: Path, types: dict[str, str], select: str, values: list[Any]) -> None:
    with duckdb.connect() as database:
        columns = ", ".join(f"{name}::{kind} AS {name}" for name, kind in types.items())
        database.execute(f"COPY (SELECT {columns} FROM ({select})) TO '{path}' (FORMAT parquet)", values)


def write_rows(path: Path, types: dict[str, str], rows: list[Row]) -> None:
    if rows:
        struct = ", ".join(f"{name} {kind}" for name, kind in types.items())
        write(path, types, f"SELECT unnest(from_json(?, '[\"JSON\"]')::STRUCT({struct})[], recursive := true)",
              [msgspec.json.encode(rows).decode()])  # fmt: skip
    else:
        write(path, types, f"SELECT {', '.join(f'NULL AS {name}' for name in types)} WHERE false", [])


def open_index(folder: Path) -> OpenIndex:
    files = {name: [StoredFile("b", 0, 1)] for name in ("tasks", "task_list", "actors")}
    manifest = Manifest(SCHEMA_VERSION, 1, "b", files, "", None, SessionCounts(), None, None, None, 0, 0)

    async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        return [folder / ("actors" if name == "actors" else "tasks")]

    return OpenIndex(manifest, fetch)


def tree_in(folder: Path, *filters: Filter, **limits: int) -> LineageTree:
    return asyncio.run(read_lineage(open_index(folder), filters, **limits))


def tree_of(tasks: list[Row], actors: list[Row] | None = None, **limits: int) -> LineageTree:
    with tempfile.TemporaryDirectory() as name:
        write_rows(Path(name) / "tasks", TASK_TYPES, tasks)
        write_rows(Path(name) / "actors", ACTOR_TYPES, actors or [])
        return tree_in(Path(name), **limits)


def expected(tasks: list[Row], actors: list[Row], max_depth: int = MAX_DEPTH) -> list[NestedTaskSummary]:
    return reference(sorted(tasks, key=lambda row: (row["task_id"], -row["attempt_number"])), actors, max_depth)


_IDS = [f"t{number}" for number in range(8)]
_ACTORS = ["a1", "a2", "a3"]


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Tasks with attempts, with or without actors, called by each other, themselves, the driver or an unknown task."""
    tasks: list[Row] = []
    for task_id in draw(st.lists(st.sampled_from(_IDS), unique=True)):
        kind = draw(st.sampled_from(["NORMAL_TASK", "NORMAL_TASK", "ACTOR_TASK", "ACTOR_CREATION_TASK"]))
        parent = draw(st.sampled_from([*_IDS, DRIVER, DRIVER, None, "lost"]))
        name = draw(st.sampled_from(["f", "g", "h", ""]))
        actor = None if kind == "NORMAL_TASK" else draw(st.sampled_from(_ACTORS))
        tasks += [
            task(
                task_id,
                draw(st.sampled_from([parent, parent, DRIVER])),
                type=kind,
                actor_id=actor,
                name=name,
                func_or_class_name=draw(st.sampled_from(["A.__init__", "g"])),
                attempt_number=attempt,
                state=draw(st.sampled_from(["NIL", *TASK_STATES])),
                creation_time_ms=draw(st.one_of(st.none(), st.integers(1, 3))),
            )
            for attempt in draw(st.lists(st.integers(0, 2), min_size=1, unique=True))
        ]
    actors = [
        {
            "actor_id": actor_id,
            "repr_name": draw(st.sampled_from([None, "", "f"])),
            "class_name": draw(st.sampled_from([None, "A"])),
        }
        for actor_id in draw(st.lists(st.sampled_from(_ACTORS), unique=True))
    ]
    return draw(st.permutations(tasks)), actors


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 15), deadline=None)
@given(forests())
def test_tree_equals_reference_for_any_tasks(forest: tuple[list[Row], list[Row]]) -> None:
    tasks, actors = forest
    tree = tree_of(tasks, actors)
    assert msgspec.to_builtins(nested_summaries(tree.children)) == msgspec.to_builtins(expected(tasks, actors))
    assert tree.complete


def test_descendants_of_an_unknown_task_are_not_listed() -> None:
    tree = tree_of([task("a", None), task("b", "lost"), task("c", "b")])
    assert [node.key for node in tree.children] == ["a"]


def test_cycles_of_calls_are_not_listed() -> None:
    assert tree_of([task("a", "b"), task("b", "a"), task("c", "c")]).children == []


@pytest.mark.slow
@pytest.mark.parametrize(("max_depth", "length"), [(20, 19), (20, 20), (20, 21), (20, 150), (MAX_DEPTH, 1500)])
def test_long_chain_is_listed_to_max_depth_and_counted_completely(
    monkeypatch: pytest.MonkeyPatch, max_depth: int, length: int
) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", max_depth)
    chain = [task("t0")] + [task(f"t{i}", f"t{i - 1}", creation_time_ms=length - i) for i in range(1, length)]
    chain += [task("x", f"t{length - 1}"), task("lost", "y"), task("y", "lost")]
    tree = tree_of(chain)
    [top] = tree.children
    assert msgspec.to_builtins(nested_summaries(tree.children)) == msgspec.to_builtins(expected(chain, [], max_depth))
    assert top.state_counts == {"FINISHED": length + 1}
    assert tree.complete == (length < max_depth)


def test_siblings_are_sorted_by_state_then_time() -> None:
    tree = tree_of(
        [
            task("late", creation_time_ms=9),
            task("early", creation_time_ms=2),
            task("failed", state="FAILED"),
            task("pending", state="PENDING_ARGS_AVAIL"),
            task("running", state="RUNNING_IN_RAY_GET"),
        ]
    )
    assert [node.name for node in tree.children] == ["running", "pending", "failed", "early", "late"]


def test_unknown_actor_is_named_by_its_creation_task() -> None:
    [actor] = nested_summaries(tree_of([creation("t", "a")]).children)
    assert (actor.name, actor.key, actor.timestamp) == ("A", "actor:a", 1)
    assert msgspec.to_builtins(actor.link) == {"type": "actor", "id": "a"}


def test_large_group_lists_first_members_and_counts_all() -> None:
    """Some tasks of the group were retried, and one called others."""
    tasks = [task(f"t{i:03}", name="f", state="FAILED" if i % 3 == 0 else "FINISHED", creation_time_ms=900 - i)
             for i in range(300)]  # fmt: skip
    tasks += [task(f"t{i:03}", name="f", attempt_number=1, creation_time_ms=900 - i) for i in range(0, 300, 7)]
    tasks += [task("u", "t005"), task("v", "t005", state="RUNNING")]
    [whole] = expected(tasks, [])
    tree = tree_of(tasks, max_per_group=40)
    [group] = nested_summaries(tree.children)
    assert (group.state_counts, group.timestamp) == (whole.state_counts, whole.timestamp)
    assert msgspec.to_builtins(group.children) == msgspec.to_builtins(whole.children[:40])
    assert not tree.complete


def test_listed_nodes_are_bounded_and_shared_by_groups() -> None:
    tasks = [task(f"{name}{i:02}", name=name) for name in "abc" for i in range(20)]
    tasks += [task(f"z{i}", "a00") for i in range(5)]
    tree = tree_of(tasks, max_nodes=30)
    assert [(len(group.children), sum(group.state_counts.values())) for group in tree.children] == [
        (10, 25), (10, 20), (10, 20),
    ]  # fmt: skip
    assert tree.children[0].children[0].children == []
    assert not tree.complete
    many = tree_of([task(f"t{i}") for i in range(50)], max_nodes=30)
    assert (len(many.children), many.complete) == (30, False)


def test_filters_select_the_tasks_of_the_tree(tmp_path: Path) -> None:
    write_rows(tmp_path / "tasks", TASK_TYPES, [task("a"), task("b", state="FAILED"), task("c", "a", state="FAILED")])
    write_rows(tmp_path / "actors", ACTOR_TYPES, [])
    tree = tree_in(tmp_path, Filter("state", "=", "failed"))
    assert [(node.key, node.state_counts) for node in tree.children] == [("b", {"FAILED": 1})]


@pytest.mark.slow
def test_counts_of_many_tasks_are_exact(tmp_path: Path) -> None:
    """A hundred thousand leaves with few names, and fifty thousand below a hundred of them."""
    leaves = f"""SELECT printf('%06d', i) AS task_id, 0 AS attempt_number, 'f' || i % 5 AS name,
      name AS func_or_class_name, 'NORMAL_TASK' AS type,
      CASE WHEN i < 100000 THEN '{DRIVER}' ELSE printf('%06d', i % 100) END AS parent_task_id,
      NULL AS actor_id, CASE WHEN i % 10 = 0 THEN 'FAILED' ELSE 'FINISHED' END AS state, i AS creation_time_ms
      FROM range(150000) r(i)"""
    write(tmp_path / "tasks", TASK_TYPES, leaves, [])
    write_rows(tmp_path / "actors", ACTOR_TYPES, [])
    tree = tree_in(tmp_path)
    assert {node.name: node.state_counts for node in tree.children} == {
        "f0": {"FAILED": 15_000, "FINISHED": 15_000},
        **{f"f{i}": {"FINISHED": 30_000} for i in range(1, 5)},
    }
    assert {len(node.children) for node in tree.children} == {1000}
    assert not tree.complete
    [first] = [node for node in tree.children[0].children if node.key == "000000"]
    assert first.state_counts == {"FAILED": 501}
    assert first.children[0].state_counts == {"FAILED": 500}


@pytest.mark.slow
def test_listed_nodes_are_bounded_if_all_names_differ(tmp_path: Path) -> None:
    each = f"""SELECT printf('%06d', i) AS task_id, 0 AS attempt_number, 'item-' || i AS name,
      name AS func_or_class_name, 'NORMAL_TASK' AS type, '{DRIVER}' AS parent_task_id, NULL AS actor_id,
      'FINISHED' AS state, i + 1 AS creation_time_ms FROM range(50000) r(i)"""
    write(tmp_path / "tasks", TASK_TYPES, each, [])
    write_rows(tmp_path / "actors", ACTOR_TYPES, [])
    tree = tree_in(tmp_path)
    assert [node.name for node in tree.children] == [f"item-{i}" for i in range(30_000)]
    assert not tree.complete
