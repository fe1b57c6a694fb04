"""Folding of events that real Ray sent."""

import asyncio
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayhistory.gaps import GapCode
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.parallel_decode import DecodeWork, decode
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.sources import Source, SourceKind
from rayhistory.index.manifest import MERGED_PREFIX
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from support.event_samples import (
    cut_event,
    first_ns,
    lifecycle,
)
from support.folding import (
    NODE,
    RECORDED,
    RECORDED_LOSSES,
    REF,
    as_lines,
    files_of,
    fold_session,
    put,
    read_files,
    rows,
    same_spans,
    settings_for,
    tables,
    tables_as_of,
)
from support.skewed_events import EVENTS as SKEWED

ANOMALIES = f"source <> '' AND kind <> '{GapCode.EVENTS_REPEATED}'"
"""The condition of gaps in objects."""


INFERRED = "closed_by_history AND type <> 'DRIVER_TASK'"
LAWS = settings(
    max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow
@LAWS
@given(seed=st.integers(0, 10**6), files=st.integers(1, 5), repeated=st.integers(0, 60))
def test_order_split_and_repetition_of_events_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, seed: int, files: int, repeated: int
) -> None:
    """Events may arrive in any order, in any number of objects, and more than once."""
    whole, pieces = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("pieces")
    recorded = RECORDED + SKEWED
    put(whole, 0, as_lines(recorded))
    rng = random.Random(seed)
    events = recorded + rng.sample(recorded, repeated)
    rng.shuffle(events)
    for number in range(files):
        put(pieces, number, as_lines(events[number::files]))
    assert tables(pieces, fold_session(pieces)) == tables(whole, fold_session(whole))


@pytest.mark.slow
@LAWS
@given(seed=st.integers(0, 10**6))
def test_extending_an_index_equals_folding_everything(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Only new objects are read."""
    whole, grown = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("grown")
    events = random.Random(seed).sample(RECORDED + SKEWED, len(RECORDED + SKEWED))
    put(whole, 0, as_lines(events))
    cut = seed % len(events)
    put(grown, 0, as_lines(events[:cut]))
    first = fold_session(grown, None)
    assert first.events == cut
    put(grown, 1, as_lines(events[cut:]))
    second = fold_session(grown)
    assert (second.generation, second.events) == (2, len(events))
    assert tables(grown, second) == tables(whole, fold_session(whole))


def test_tasks_of_dead_workers_and_finished_jobs_are_failed_like_in_ray(tmp_path: Path) -> None:
    """Ray marks them in memory and does not export that."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path, None)
    found = rows(tmp_path, manifest, "SELECT state, error_type, error_message, closed_by_history FROM tasks "
                 "WHERE name = 'sleeper'")  # fmt: skip
    assert len(found) == 1
    state, error_type, message, is_inferred = found[0]
    assert (state, error_type, is_inferred) == ("FAILED", "WORKER_DIED", False)
    assert "died with exit_type: 3 with error_message: Worker force exited" in message


@pytest.mark.slow
@pytest.mark.parametrize(("clean", "status", "word"), [(True, "STOPPED", "ended"), (False, "FAILED", "vanished")])
def test_running_entities_end_with_the_session_and_are_marked(
    tmp_path: Path, clean: bool, status: str, word: str
) -> None:
    """A clean end stops jobs, a vanished session fails them."""
    ended_ns = 1_794_770_340_000_000_000
    events = [cut_event(event, ended_ns) for event in RECORDED if first_ns(event) <= ended_ns]
    put(tmp_path, 0, as_lines(events))
    closing = Closing(ended_ns + 10**9, clean=clean)
    manifest = fold_session(tmp_path, closing)
    jobs = rows(tmp_path, manifest, "SELECT status, message, closed_by_history, end_time FROM jobs WHERE type='DRIVER'")
    assert jobs[0][0] == status
    assert f"The session {word} at 2026-11-15T19:19:" in jobs[0][1]
    assert jobs[0][2] is True
    inferred = rows(tmp_path, manifest, f"SELECT DISTINCT state, error_type FROM tasks WHERE {INFERRED} ORDER BY 1")
    assert inferred == [("FAILED", "NODE_DIED")]
    assert manifest.counts.failed_tasks == fold_session(tmp_path, None).counts.failed_tasks, (
        "an inferred end is not a failure"
    )
    assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE state NOT IN ('FINISHED', 'FAILED')") == [(0,)]
    assert rows(tmp_path, manifest, "SELECT DISTINCT state FROM actors") == [("DEAD",)]
    assert rows(tmp_path, manifest, "SELECT state, closed_by_history FROM nodes") == [("DEAD", True)]
    assert rows(tmp_path, manifest, "SELECT bool_or(is_alive) FROM workers") == [(False,)]
    codes = {code for (code,) in rows(tmp_path, manifest, "SELECT kind FROM gaps")}
    assert {"job_open_at_session_end", "node_open_at_session_end"} <= codes


@pytest.mark.slow
@pytest.mark.parametrize("table", ["task_updates", "workers"])
@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: data[:40] + bytes(4) + data[44:]])
def test_damaged_previous_generation_is_not_extended(
    tmp_path: Path, table: str, damage: Callable[[bytes], bytes]
) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    first = fold_session(tmp_path)
    expected = tables(tmp_path, first)
    (damaged,) = files_of(tmp_path, first, MERGED_PREFIX + table)
    damaged.write_bytes(damage(damaged.read_bytes()))
    second = fold_session(tmp_path)
    assert second.generation == 2
    assert second.events == len(RECORDED)
    assert tables(tmp_path, second) == expected


def test_unknown_end_of_a_session_is_null(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines([event | {"timestamp": "yesterday"} for event in RECORDED]))
    manifest = fold_session(tmp_path, Closing(0, clean=True))
    assert manifest.last_ns is None
    assert rows(tmp_path, manifest, "SELECT status, message, end_time FROM jobs WHERE closed_by_history") == [
        ("STOPPED", "The session ended before Ray reported an end.", None)
    ]


def snake_case(value: Any) -> Any:
    if isinstance(value, list):
        return [snake_case(item) for item in value]
    if isinstance(value, dict):
        unchanged = {"requiredResources", "labels", "resources", "metadata", "labelSelector"}
        return {
            "".join(f"_{c.lower()}" if c.isupper() else c for c in key): item if key in unchanged else snake_case(item)
            for key, item in value.items()
        }
    return value


@pytest.mark.slow
def test_camel_case_and_snake_case_give_the_same_tables(tmp_path: Path) -> None:
    """A setting of Ray keeps the field names of its protocol buffers."""
    put(tmp_path / "camel", 0, as_lines(RECORDED))
    put(tmp_path / "snake", 0, as_lines([snake_case(event) for event in RECORDED]))
    camel_tables = tables(tmp_path / "camel", fold_session(tmp_path / "camel"))
    snake_tables = tables(tmp_path / "snake", fold_session(tmp_path / "snake"))
    assert same_spans(snake_tables.pop("profile_events")) == same_spans(camel_tables.pop("profile_events"))
    for name, expected in camel_tables.items():
        assert repr(snake_tables[name]).replace(" ", "") == repr(expected).replace(" ", ""), name


def test_execution_events_of_ray_2_49_are_read(tmp_path: Path) -> None:
    """They have another name, and a map from state number to time."""
    event = lifecycle()
    nested_event = event.pop("taskLifecycleEvent")
    nested_event["taskState"] = {"8": "2026-11-15T19:18:46.669Z", "11": "2026-11-15T19:18:49.068Z"}
    del nested_event["stateTransitions"]
    put(tmp_path, 0, as_lines([event | {"eventType": "TASK_EXECUTION_EVENT", "taskExecutionEvent": nested_event}]))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT state, start_time_ms, end_time_ms FROM tasks") == [
        ("FINISHED", 1794770326669, 1794770329068)
    ]


@pytest.mark.slow
def test_seal_written_after_the_fold_is_counted_by_the_next(tmp_path: Path) -> None:
    """A collector writes its seal after its last object."""
    put(tmp_path, 0, as_lines(RECORDED))
    before = fold_session(tmp_path)
    path = tmp_path / Layout().node_seal_key(REF, NODE)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"node_id": NODE, "sealed_ms": 1, "dropped": 2}))
    after = fold_session(tmp_path)
    assert after.covered != before.covered
    assert (after.events, after.counts.gaps - before.counts.gaps) == (before.events, 2)


@pytest.mark.slow
def test_losses_of_a_collector_are_counted_once(tmp_path: Path) -> None:
    """Extending the index does not add them again."""
    seal = {"node_id": NODE, "sealed_ms": 1, "set_aside": 3, "dropped": 2}
    path = tmp_path / Layout().node_seal_key(REF, NODE)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(seal))
    for number in range(3):
        put(tmp_path, number, as_lines(RECORDED[number * 50 : (number + 1) * 50]))
        manifest = fold_session(tmp_path)
    found = rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {ANOMALIES} ORDER BY kind")
    assert found == [("events_dropped", 2), ("events_quarantined", 3)]
    assert manifest.counts.gaps == fold_session(tmp_path, fresh=True).counts.gaps


def test_repeated_events_are_reported_and_no_loss(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:7] + RECORDED))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, f"SELECT count FROM gaps WHERE kind = '{GapCode.EVENTS_REPEATED}'") == [
        (4 + 7,)
    ]  # 4 by Ray
    assert manifest.counts.gaps == RECORDED_LOSSES


def test_clock_skew_is_reported(tmp_path: Path) -> None:
    """By its clock, the worker started two seconds before the owner submitted the task."""
    owner = lifecycle(stateTransitions=[{"state": "SUBMITTED_TO_WORKER", "timestamp": "2026-11-15T19:18:42Z"}])
    worker = lifecycle(stateTransitions=[{"state": "RUNNING", "timestamp": "2026-11-15T19:18:40Z"}])
    put(tmp_path, 0, as_lines([owner, worker | {"eventId": "another"}]))
    manifest = fold_session(tmp_path)
    codes = {code for (code,) in rows(tmp_path, manifest, "SELECT kind FROM gaps")}
    assert "task_clock_skew" in codes
    assert manifest.counts.gaps == 5, "the skew, a task without a definition, and no nodes, jobs and actors"


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["64Ki", "128Ki"])
def test_partitions_do_not_change_the_tables(tmp_path: Path, memory: str) -> None:
    """One partition, several, and several after a generation with another number of them."""
    put(tmp_path, 0, as_lines(RECORDED[:70]))
    put(tmp_path, 1, as_lines(RECORDED[70:]))
    expected = tables(tmp_path, fold_session(tmp_path))
    partitioned = fold_session(tmp_path, memory=memory, fresh=True)
    assert len(partitioned.files_of("tasks")) >= 4
    assert tables(tmp_path, partitioned) == expected
    put(tmp_path, 2, as_lines([lifecycle()]))
    again = fold_session(tmp_path, memory="96Ki")
    assert again.files_of("tasks") == partitioned.files_of("tasks"), "the event is known, so its part stays as it is"
    assert {name: found for name, found in tables(tmp_path, again).items() if name != "gaps"} == {
        name: found for name, found in expected.items() if name != "gaps"
    }
    as_of_ns = 1_794_770_327_000_000_000
    assert tables_as_of(tmp_path, again, as_of_ns) == tables_as_of(
        tmp_path, fold_session(tmp_path, fresh=True), as_of_ns
    )


@pytest.mark.slow
def test_large_session_is_merged_by_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:70]))
    put(tmp_path, 1, as_lines(RECORDED[70:]))
    with ThreadPoolExecutor(2) as pool:
        single = fold_session(tmp_path, pool=pool)
        monkeypatch.setattr("rayhistory.index.fold.fold_process._MIN_BYTES_PER_PROCESS", 1)
        parallel = fold_session(tmp_path, fresh=True, pool=pool)
    assert (len(single.files_of("tasks")), len(parallel.files_of("tasks"))) == (1, available_cores())
    assert tables(tmp_path, parallel) == tables(tmp_path, single)


def test_object_deleted_during_the_fold_is_a_gap(tmp_path: Path) -> None:
    deleted = Source(put(tmp_path, 1, as_lines(RECORDED)), 10_000, SourceKind.EVENTS)
    (tmp_path / deleted.key).unlink()
    settings, scratch = settings_for(tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    assert asyncio.run(decode(DecodeWork(settings, scratch, Partitions()), [deleted], "0")).events == 0
    (gaps,) = scratch.glob("gaps-*.parquet")
    assert [row[1] for row in read_files([gaps])] == ["object_disappeared"]


def test_event_from_the_future_does_not_move_the_end_of_the_session(tmp_path: Path) -> None:
    """It is later than the object that holds it, so its clock was wrong."""
    put(tmp_path, 0, as_lines(RECORDED))
    wrong = {**RECORDED[0], "eventId": "wrong-clock", "timestamp": "2136-01-01T00:00:00.000000000Z"}
    key = put(tmp_path, 1, as_lines([wrong]))
    manifest = fold_session(tmp_path, Closing(0, clean=False))
    modified = (tmp_path / key).stat().st_mtime
    assert manifest.last_ns is not None
    assert manifest.last_ns / 1e9 <= modified + 1
    [(source, count)] = rows(
        tmp_path, manifest, f"SELECT source, count FROM gaps WHERE kind = '{GapCode.EVENT_FROM_FUTURE}'"
    )
    assert (source, count) == (key, 1)


def test_small_fold_starts_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    fold_session(tmp_path, fresh=True)  # starts the database that all folds of a process share
    started: list[object] = []
    connect = duckdb.connect

    def count(*arguments: Any, **options: Any) -> duckdb.DuckDBPyConnection:
        started.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(duckdb, "connect", count)
    fold_session(tmp_path, fresh=True)
    assert len(started) == 1
