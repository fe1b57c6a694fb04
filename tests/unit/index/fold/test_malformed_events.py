"""Malformed events and damaged objects are repaired or counted, and never stop the fold."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rayhistory.gaps import GapCode
from rayhistory.sessions.records import Closing
from support.event_samples import lifecycle, ns_of
from support.folding import (
    RECORDED,
    as_lines,
    fold_session,
    put,
    rows,
)

ANOMALIES = f"source <> '' AND kind <> '{GapCode.EVENTS_REPEATED}'"
"""The condition of gaps in objects."""


DAMAGED_OBJECTS = {
    "truncated gzip": (gzip.compress(as_lines(RECORDED))[:-400], ".jsonl.gz", {"object_truncated", "line_unreadable"}),
    "damaged gzip": (gzip.compress(as_lines(RECORDED[:20])) + gzip.compress(as_lines(RECORDED))[:30] + b"!" * 90,
                     ".jsonl.gz", {"object_truncated"}),
    "many gzip members": (b"".join(gzip.compress(as_lines([event])) for event in RECORDED), ".jsonl.gz", set()),
    "zstd": (zstandard.compress(as_lines(RECORDED)), ".jsonl", set()),
    "truncated zstd": (zstandard.compress(as_lines(RECORDED)) + zstandard.compress(as_lines(RECORDED))[:-400], ".jsonl",
                       {"object_truncated", "line_unreadable"}),
    "half a last line": (as_lines(RECORDED)[:-50], ".jsonl", {"line_unreadable"}),
    "invalid UTF-8": (as_lines(RECORDED) + b'{"eventType": "\xff\xfe"}\n', ".jsonl", {"line_unreadable"}),
    "a JSON array": (json.dumps(RECORDED).encode(), "", set()),
    "blank lines": (as_lines(RECORDED).replace(b"\n", b"\n\n  \n"), ".jsonl", set()),
    "garbage between": (as_lines(RECORDED[:9]) + b"\x00\x01garbage\n[]\n7\n" + as_lines(RECORDED[9:]), ".jsonl",
                        {"line_unreadable", "line_not_an_event"}),
    "an empty object": (b"", ".jsonl", set()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGED_OBJECTS)
def test_damage_of_an_object_is_counted_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    data, suffix, codes = DAMAGED_OBJECTS[name]
    put(tmp_path, 0, data, suffix=suffix)
    put(tmp_path, 1, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    found = {code for (code,) in rows(tmp_path, manifest, f"SELECT DISTINCT kind FROM gaps WHERE {ANOMALIES}")}
    assert found == codes
    assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'") == [(23,)]


def node_definition(**changes: Any) -> dict[str, Any]:
    event: dict[str, Any] = next(
        json.loads(json.dumps(event)) for event in RECORDED if event["eventType"] == "NODE_DEFINITION_EVENT"
    )
    event["nodeDefinitionEvent"] |= changes
    return event


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "code"),
    [
        (lifecycle(taskId="AAAA"), "id_invalid"),
        (lifecycle(stateTransitions=[{"state": "FLYING", "timestamp": "2026-11-15T19:18:40Z"}]), "state_unknown"),
        (
            lifecycle(stateTransitions=[{"state": "RUNNING", "timestamp": "99999-01-01T00:00:00Z"}]),
            "timestamp_unreadable",
        ),
        ({"eventType": "FROM_THE_FUTURE_EVENT", "timestamp": "2026-11-15T19:18:40Z"}, "event_type_unknown"),
        (lifecycle(somethingNew={"a": [1]}), "event_field_unknown"),
        (lifecycle() | {"timestamp": "yesterday"}, "event_without_timestamp"),
        (lifecycle(workerPid=2**80), None),
        (lifecycle(taskAttempt=2**80), "row_without_key"),
        (
            lifecycle(stateTransitions=[{"state": "FINISHED", "timestamp": "2300-01-01T00:00:00Z"}]),
            "timestamp_unreadable",
        ),
        (lifecycle(stateTransitions=[], taskState={"99": "2026-11-15T19:18:40Z"}), "state_unknown"),
        (lifecycle(stateTransitions=[], taskState={"11": "yesterday"}), "timestamp_unreadable"),
        (lifecycle(stateTransitions=[], taskState={"13": "2026-11-15T19:18:40Z"}), None),
        (node_definition(startTimestamp="9999-12-31T23:59:59Z"), "timestamp_unreadable"),
        (lifecycle(workerPid="16293", taskAttempt="0"), None),
        (lifecycle(jobId=7, isDebuggerPaused="true"), None),
    ],
)
def test_malformed_event_is_repaired_or_counted(tmp_path: Path, event: dict[str, Any], code: str | None) -> None:
    put(tmp_path, 0, as_lines([event]))
    put(tmp_path, 1, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    found = [found_code for (found_code,) in rows(tmp_path, manifest, f"SELECT kind FROM gaps WHERE {ANOMALIES}")]
    assert (found == []) if code is None else (found == [code])


def test_profile_of_no_task_is_no_gap(tmp_path: Path) -> None:
    """Threads that run no task, as those of Ray Train, profile their calls under the nil task id."""
    [*_, profile] = [event for event in RECORDED if event["eventType"] == "TASK_PROFILE_EVENT"]
    events = profile | {"taskProfileEvents": profile["taskProfileEvents"] | {"taskId": "/" * 32}}
    put(tmp_path, 0, as_lines([*RECORDED, events]))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, f"SELECT kind FROM gaps WHERE {ANOMALIES}") == []
    assert rows(tmp_path, manifest, "SELECT count(*) FROM profile_events WHERE task_id IS NULL") == [(0,)]


def test_deeply_nested_event_does_not_affect_others(tmp_path: Path) -> None:
    """A converted event is encoded again, with a recursion limit of its own. Depths around both limits are tried."""
    depths = range(900, 1001)
    deep = b"".join(b'{"new": 1, "platformEvent": %b}\n' % (b"[" * depth + b"]" * depth) for depth in depths)
    put(tmp_path, 0, as_lines(RECORDED) + deep)
    manifest = fold_session(tmp_path)
    assert manifest.counts.tasks == 23
    counts = dict(rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {ANOMALIES}"))
    assert counts["event_nested_too_deeply"] + counts["event_field_unknown"] == len(depths)


@pytest.mark.parametrize("late", ["2262-04-11T23:47:16.854775807Z", "9999-12-31T23:59:59.999999999Z"])
def test_out_of_range_timestamp_does_not_move_the_end_of_the_session(tmp_path: Path, late: str) -> None:
    """The end of a session without an end record is its last event."""
    put(tmp_path, 0, as_lines([*RECORDED, RECORDED[0] | {"eventId": "another", "timestamp": late}]))
    manifest = fold_session(tmp_path, Closing(0, clean=True))
    assert manifest.last_ns == max(ns_of(event) for event in RECORDED)
    assert rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {ANOMALIES}") == [
        ("event_without_timestamp", 1)
    ]
    [(message,)] = rows(tmp_path, manifest, "SELECT message FROM jobs WHERE closed_by_history")
    assert message == "The session ended at 2026-11-15T19:21:53Z before Ray reported an end."


def test_gaps_do_not_grow_with_the_events(tmp_path: Path) -> None:
    """An unknown state has one row; details that all differ are limited in number."""
    times = [f"2026-11-15T19:18:40.{number:03}Z" for number in range(500)]
    unknown_states = [lifecycle(stateTransitions=[{"state": "FLYING", "timestamp": time}]) for time in times]
    unreadable_times = [lifecycle(stateTransitions=[{"state": "RUNNING", "timestamp": f"~{time}"}]) for time in times]
    unknown_types = [{"eventType": f"EVENT_{number}", "timestamp": times[0]} for number in range(500)]
    put(tmp_path, 0, as_lines([*unknown_states, *unreadable_times, *unknown_types]))
    manifest = fold_session(tmp_path)
    found = rows(tmp_path, manifest, f"SELECT kind, detail, count FROM gaps WHERE {ANOMALIES}")
    assert ("state_unknown", "task FLYING", 500) in found
    for code, total in ("timestamp_unreadable", 500), ("event_type_unknown", 500):
        counts = {detail: count for found_code, detail, count in found if found_code == code}
        assert (sum(counts.values()), len(counts)) == (total, 201)
        assert counts[""] > 200


def tasks_response(*tasks: dict[str, Any]) -> dict[str, Any]:
    """A State API list in a session that has no events."""
    body = {"data": {"result": {"result": tasks}}}
    response = {"uri": "/api/v0/tasks?detail=1", "only": True, "body": body}
    return {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:18:41Z", "dashboardSnapshot": response}


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["1Gi", "128Ki"], ids=["one partition", "several partitions"])
@pytest.mark.parametrize(
    "key", [{"task_id": None}, {"task_id": ""}, {"task_id": 7}, {"attempt_number": None}, {"attempt_number": 2**80}],
    ids=str,
)  # fmt: skip
def test_row_without_key_is_counted_and_left_out(tmp_path: Path, memory: str, key: dict[str, Any]) -> None:
    good = {"task_id": "ab" * 24, "attempt_number": 0, "job_id": "01000000", "state": "RUNNING"}
    put(tmp_path, 0, as_lines([*RECORDED, tasks_response(good | key, good)]))
    manifest = fold_session(tmp_path, memory=memory)
    assert manifest.counts.tasks == 24
    assert rows(tmp_path, manifest, f"SELECT kind, detail, count FROM gaps WHERE {ANOMALIES} ORDER BY detail") == [
        ("row_without_key", "task_definitions", 1),
        ("row_without_key", "task_updates", 1),
    ]


def test_invalid_value_is_counted_and_left_out(tmp_path: Path) -> None:
    events = [{"state": "RUNNING", "created_ms": 1_794_770_321_000}, {"state": "FINISHED", "created_ms": 10**30}]
    task = {"task_id": "ab" * 24, "attempt_number": 0, "job_id": "01000000", "worker_pid": "7", "events": events}
    put(tmp_path, 0, as_lines([tasks_response(task)]))
    manifest = fold_session(tmp_path, None)
    assert rows(tmp_path, manifest, "SELECT state, worker_pid FROM tasks") == [("RUNNING", None)]
    assert rows(tmp_path, manifest, f"SELECT kind, detail FROM gaps WHERE {ANOMALIES} ORDER BY detail") == [
        ("value_invalid", "task_updates.finished_ns"),
        ("value_invalid", "task_updates.process_pid"),
    ]


ACTOR = b'"actorId": "44J0ulW4IOXyL/vNAgAAAA=="'


DEAD = b'"state": "DEAD", "timestamp": "2026-11-15T19:18:40Z"'


MALFORMED_JOB: dict[str, Any] = {
    "type": "SUBMISSION",
    "submission_id": "s",
    "entrypoint": "e",
    "runtime_env": {},
    "job_id": None,
    "metadata": {},
    "start_time": 1.5,
    "status": "RUNNING",
    "message": 5,
    "error_type": None,
    "end_time": "x",
}


def actor_death(cause: bytes) -> bytes:
    transition = b"{%b, %b}" % (DEAD, b'"deathCause": ' + cause)
    return b'{"actorLifecycleEvent": {%b, "stateTransitions": [%b]}}' % (ACTOR, transition)


MALFORMED_PARTS = {
    "invalid UTF-8 in a map": b'{"actorDefinitionEvent": {%b, "labelSelector": {"a": "\xff"}}}' % ACTOR,
    "a number out of range": actor_death(b'{"x": 1e999}'),
    "deep nesting": actor_death(b'{"a":' * 900 + b"1" + b"}" * 900),
    "an infinite time": b'{"exportRecord": {"file": "f", "line": {"source_type": "EXPORT_SUBMISSION_JOB", '
    b'"timestamp": "inf", "event_data": {"submission_job_id": "x", "status": "RUNNING"}}}}',
    "text instead of numbers in a dashboard response": b'{"timestamp": "2026-11-15T19:18:40Z", "dashboardSnapshot": '
    b'{"uri": "/api/jobs/", "body": [%b]}}' % json.dumps(MALFORMED_JOB).encode(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MALFORMED_PARTS)
def test_malformed_part_of_an_event_does_not_stop_the_fold(tmp_path: Path, name: str) -> None:
    """Parts of an event that are stored as raw JSON are parsed later, and can have any shape."""
    put(tmp_path, 0, MALFORMED_PARTS[name] + b"\n")
    put(tmp_path, 1, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'") == [(23,)]


@pytest.mark.slow
def test_line_longer_than_one_read_is_complete(tmp_path: Path) -> None:
    event = json.loads(json.dumps(next(e for e in RECORDED if e["eventType"] == "TASK_DEFINITION_EVENT")))
    event["taskDefinitionEvent"]["callSite"] = "x" * 9_000_000
    put(tmp_path, 0, as_lines([event]) + as_lines(RECORDED[:3]))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT max(length(call_site)) FROM tasks") == [(9_000_000,)]
    assert rows(tmp_path, manifest, f"SELECT * FROM gaps WHERE {ANOMALIES}") == []
