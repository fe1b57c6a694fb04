"""The verification of scenarios reports lost, duplicated and unexpected data."""

import json
import random
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import duckdb
import pytest

from faults.entity_events import entity_events
from faults.fault_schedule import FaultSchedule, Outcome
from faults.log_writer import LogVersion
from faults.pack_parser import EVENTS, LOG, StoredStream, read_streams
from faults.verification import (
    StoredSession,
    check_events,
    check_index,
    check_logs,
    check_seal,
    check_whole_files,
    expected_tasks,
)
from faults.verified_entities import check_entities, expected_entities
from faults.workload import task_events
from rayhistory.collector.logs.pack_series import PackSeries
from rayhistory.packs.pack_directory import PackDirectory

NODE = "ab" * 28


def test_correct_session_has_no_problems() -> None:
    stored = StoredSession(
        {NODE: Counter(["a", "b", "b"])}, {"a": {}, "b": {}}, {}, {NODE: {"received": 3, "stored": 3}}
    )
    assert not list(check_events(stored, {"a"}, Counter(["a", "b", "b"])))
    assert not list(check_seal(stored, NODE, exact=True))


@pytest.mark.parametrize(
    ("required", "sent", "problem"),
    [
        ({"a", "b", "c"}, Counter("abc"), "1 of 3 acked events are lost"),
        ({"a"}, Counter("a"), "1 events were never sent"),
        ({"a"}, Counter("ab") + Counter("c"), "1 events are stored more often than they were sent"),
    ],
)
def test_lost_unexpected_and_duplicated_events_are_reported(
    required: set[str], sent: Counter[str], problem: str
) -> None:
    stored = StoredSession({NODE: Counter("ab") + Counter("b")}, {"a": {}, "b": {}})
    assert problem in list(check_events(stored, required, sent))


@pytest.mark.parametrize(
    ("seal", "problem"),
    [
        (None, "has no seal"),
        ({"received": 2, "stored": 2}, "2 received and 2 stored, and 1 are in the store"),
        ({"received": 2, "stored": 1}, "2 received and 1 stored"),
        ({"received": 1, "stored": 1, "dropped": 1}, "dropped: 1"),
        ({"received": 1, "stored": 1, "left_behind": ["a"]}, "left_behind"),
    ],
)
def test_missing_or_wrong_seal_is_reported(seal: dict[str, object] | None, problem: str) -> None:
    stored = StoredSession({NODE: Counter("a")}, seals={NODE: seal} if seal else {})
    assert any(problem in each for each in check_seal(stored, NODE, exact=True))


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ([], "12 of 12 bytes of a.log"),
        ([b"header 1\nab"], "1 of 12 bytes of a.log"),
        ([b"header 1\nabX"], "never written"),
        ([b"header 1\nabc", b"header 1\na"], "is stored 2 times"),
        ([b"header 1\nabc", b"other"], "is not a file that was written"),
    ],
)
def test_lost_wrong_duplicated_and_unexpected_log_bytes_are_reported(contents: list[bytes], problem: str) -> None:
    stored = StoredSession(streams={NODE: [StoredStream("a.log", LOG, content) for content in contents]})
    version = LogVersion("a.log", b"header 1\n", bytearray(b"header 1\nabc"))
    assert any(problem in each for each in check_logs(stored, NODE, [version]))


def test_truncated_file_requires_only_confirmed_bytes(tmp_path: Path) -> None:
    stored = StoredSession(streams={NODE: [StoredStream("a.log", LOG, b"header 1\na")]})
    version = LogVersion("a.log", b"header 1\n", bytearray(b"header 1\nabc"), confirmed_bytes=10, complete=False)
    assert not list(check_logs(stored, NODE, [version]))
    version.confirmed_bytes = 11
    assert list(check_logs(stored, NODE, [version]))


def test_missing_or_different_whole_file_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "cluster-history" / "raycluster" / "default" / "c" / "s" / NODE / "logs"
    directory.mkdir(parents=True)
    (directory / "a.log").write_bytes(b"abc")
    files = {"a.log": b"abc"}
    assert not list(check_whole_files(tmp_path, "c", "s", NODE, files))
    assert list(check_whole_files(tmp_path, "c", "s", NODE, {"a.log": b"abcd"}))
    assert list(check_whole_files(tmp_path, "c", "s", NODE, {"b.log": b""}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("SELECT * FROM tasks", None),
        ("SELECT * FROM tasks UNION ALL (SELECT * FROM tasks LIMIT 1)", "1 attempts are indexed twice"),
        ("SELECT * FROM tasks OFFSET 1", "are not indexed"),
        ("SELECT * REPLACE ('RUNNING' AS state) FROM tasks", "are indexed wrong"),
        ("SELECT * REPLACE (NULL AS error_message) FROM tasks", "are indexed wrong"),
        ("SELECT * REPLACE (start_time_ms + 1 AS start_time_ms) FROM tasks", "are indexed wrong"),
        ("SELECT * REPLACE (end_time_ms + 1 AS end_time_ms) FROM tasks", "are indexed wrong"),
        ("SELECT * REPLACE (reverse(node_id) AS node_id) FROM tasks", "are indexed wrong"),
        ("SELECT * REPLACE (reverse(worker_id) AS worker_id) FROM tasks", "are indexed wrong"),
        ("SELECT * REPLACE (attempt_number + 7 AS attempt_number) FROM tasks", "do not exist"),
    ],
)
def test_wrong_index_is_reported(tmp_path: Path, change: str, problem: str | None) -> None:
    rng = random.Random(1)
    events = [event for _ in range(30) for part in task_events(rng, "s", NODE) for event in part]
    stored = StoredSession(events={event["eventId"]: event for event in events})
    rows = [(*key, *astuple(attempt)) for key, attempt in expected_tasks(stored).items()]
    directory = tmp_path / "ray-history" / "index" / "default" / "c" / "s"
    (directory / "1-x").mkdir(parents=True)
    (directory / "manifest-1.json").write_text(json.dumps({"build": "1-x", "last_ns": 1}))
    with duckdb.connect() as database:
        database.execute(
            "CREATE TABLE tasks (task_id TEXT, attempt_number INT, state TEXT, name TEXT, error_message TEXT, "
            "closed_by_history BOOLEAN, node_id TEXT, worker_id TEXT, start_time_ms BIGINT, end_time_ms BIGINT)"
        )
        database.executemany("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        database.execute(f"COPY ({change}) TO '{directory}/1-x/tasks.0.parquet'")
    write_entities(directory / "1-x", [])
    found = list(check_index(tmp_path, "c", "s", stored))
    assert not found if problem is None else any(problem in each for each in found)


def write_entities(build: Path, events: list[dict[str, Any]], change: dict[str, str] | None = None) -> None:
    """Write the tables that the verification expects for these events, with a wrong value for some columns."""
    with duckdb.connect() as database:
        for name, rows in expected_entities(events).items():
            types = COLUMNS[name].split(", ")
            columns = [each.split()[0] for each in types]
            database.execute(f"CREATE TABLE {name} ({COLUMNS[name]})")
            for key, row in rows.items():
                values = [key, *row]
                if name == "actors" and row[2] is not None:
                    values[3] = json.dumps({"actor_died_error_context": {"error_message": row[2]}})
                database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
            wrong = ", ".join(f"{(change or {}).get(f'{name}.{column}', column)} AS {column}" for column in columns)
            database.execute(f"COPY (SELECT {wrong} FROM {name}) TO '{build}/{name}.0.parquet'")


COLUMNS = {
    "nodes": "node_id TEXT, closed_by_history BOOLEAN, start_time_ms BIGINT, end_time_ms BIGINT, state_message TEXT",
    "jobs": "job_id TEXT, closed_by_history BOOLEAN, start_time BIGINT, end_time BIGINT",
    "workers": "worker_id TEXT, closed_by_history BOOLEAN, start_time_ms BIGINT, end_time_ms BIGINT, exit_type TEXT, "
    "node_id TEXT",
    "actors": "actor_id TEXT, closed_by_history BOOLEAN, end_time_ms BIGINT, death_cause TEXT, num_restarts BIGINT, "
    "node_id TEXT, worker_id TEXT, pid BIGINT, state TEXT",
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"nodes.closed_by_history": "true"}, "nodes are indexed wrong"),
        ({"nodes.end_time_ms": "end_time_ms + 1"}, "nodes are indexed wrong"),
        ({"jobs.start_time": "start_time + 1"}, "jobs are indexed wrong"),
        ({"workers.node_id": "reverse(node_id)"}, "workers are indexed wrong"),
        ({"actors.num_restarts": "num_restarts + 1"}, "actors are indexed wrong"),
        ({"actors.worker_id": "reverse(worker_id)"}, "actors are indexed wrong"),
        ({"actors.end_time_ms": "end_time_ms - 1"}, "actors are indexed wrong"),
        ({"actors.actor_id": "'other'"}, "actors are indexed"),
    ],
)
def test_wrong_entities_are_reported(tmp_path: Path, change: dict[str, str], problem: str | None) -> None:
    rng = random.Random(1)
    events = [event for _ in range(60) for event in entity_events(rng, "s")]
    write_entities(tmp_path, events, change)
    found = list(check_entities(tmp_path, {"build": "."}, events))
    assert not found if problem is None else any(problem in each for each in found)


def test_fault_that_was_not_injected_shows_in_the_outcome() -> None:
    outcome = Outcome(FaultSchedule.from_seed(1), skipped={"full disk: cannot mount a small file system here"})
    assert "passed, skipped: full disk" in outcome.line()


def test_pack_parser_reads_packs_of_the_collector(tmp_path: Path) -> None:
    """The parser reads checkpoints and overlapping ranges, and refuses a truncated pack."""
    logs, node = tmp_path / "logs", tmp_path / "node"
    logs.mkdir()
    series = PackSeries(logs, PackDirectory())
    for number in range(150):
        with (logs / "a.log").open("a") as file:
            file.write(f"line {number}\n" * (1 + number % 7))
        if number == 70:
            (logs / "a.log").rename(logs / "a.log.1")
        sealed = series.build()
        assert sealed
        path = node / sealed.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sealed.data)
    stored = read_streams(node)
    assert {stream.name: stream.content for stream in stored} == {
        path.name: path.read_bytes() for path in logs.iterdir()
    }
    assert EVENTS not in {stream.kind for stream in stored}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AssertionError):
        read_streams(node)
