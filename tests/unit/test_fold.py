"""The fold of events that real Ray sent: what it gives, and what it does not depend on."""

import asyncio
import base64
import gzip
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from folding import (
    END,
    NODE,
    RECORDED,
    REF,
    as_lines,
    files_of,
    fold_session,
    put,
    read,
    rows,
    same_spans,
    settings_for,
    tables,
    tables_as_of,
)
from rayhistory.events.tables import REPEATED
from rayhistory.events.times import parse_all, parse_ns
from rayhistory.index.cores import cores
from rayhistory.index.decoding import Decoding, decode
from rayhistory.index.manifest import MERGED, Closing
from rayhistory.index.parts import Parts
from rayhistory.index.read import unpacker
from rayhistory.index.sources import Kind, Source
from rayhistory.layout import Layout

WRONG = f"source <> '' AND kind <> '{REPEATED}'"
QUICK = settings(max_examples=30, deadline=None)
LAWS = settings(
    max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def ns_of(event: dict[str, Any]) -> int:
    return parse_ns(event["timestamp"]) or 0


@LAWS
@given(seed=st.integers(0, 10**6), files=st.integers(1, 5), twice=st.integers(0, 60))
def test_any_order_split_and_repetition_gives_the_same_tables(
    tmp_path_factory: pytest.TempPathFactory, seed: int, files: int, twice: int
) -> None:
    """Events may arrive in any order, in any number of objects, and more than once."""
    whole, pieces = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("pieces")
    put(whole, 0, as_lines(RECORDED))
    rng = random.Random(seed)
    events = RECORDED + rng.sample(RECORDED, twice)
    rng.shuffle(events)
    for number in range(files):
        put(pieces, number, as_lines(events[number::files]))
    assert tables(pieces, fold_session(pieces)) == tables(whole, fold_session(whole))


@LAWS
@given(seed=st.integers(0, 10**6))
def test_folding_one_part_and_then_the_rest_equals_folding_all(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """An index is extended by what is new, and only that is read."""
    whole, grown = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("grown")
    events = random.Random(seed).sample(RECORDED, len(RECORDED))
    put(whole, 0, as_lines(events))
    cut = seed % len(events)
    put(grown, 0, as_lines(events[:cut]))
    first = fold_session(grown, None)
    assert first.events == cut
    put(grown, 1, as_lines(events[cut:]))
    second = fold_session(grown)
    assert (second.generation, second.events) == (2, len(events))
    assert tables(grown, second) == tables(whole, fold_session(whole))


@LAWS
@given(seed=st.integers(0, 10**6))
def test_the_state_at_a_moment_depends_on_nothing_that_came_later(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Cutting the final index at a moment equals folding only what was sent until then.

    What belongs together is sent microseconds apart, so the moment is put where nothing happened for a while.
    """
    full, early = tmp_path_factory.mktemp("full"), tmp_path_factory.mktemp("early")
    times = sorted(ns_of(event) for event in RECORDED)
    quiet = [time for time, following in pairwise(times) if following - time > 20_000_000]
    moment = quiet[seed % len(quiet)] + 10_000_000
    known = [cut_event(event, moment) for event in RECORDED if first_ns(event) <= moment]
    put(full, 0, as_lines(RECORDED))
    put(early, 0, as_lines([event for event in known if event]))
    columns = "task_id, attempt_number, name, state, error_type, creation_time_ms, start_time_ms, end_time_ms, defined"
    expected = tables(early, fold_session(early, None), columns)
    actual = tables_as_of(full, fold_session(full), moment, columns)
    for name in ("tasks", "actors", "nodes", "jobs", "workers", "actor_transitions"):
        assert actual[name] == expected[name], name
    assert same_spans(actual["profile_events"]) == same_spans(expected["profile_events"])


def first_ns(event: dict[str, Any]) -> int:
    times = [ns_of(event)] if "Definition" in json.dumps(list(event)) else []
    times += [ns_of(change) for change in transitions(event)]
    times += [int(span["endTime"]) for span in spans(event)]
    return min(times, default=ns_of(event))


def nested(event: dict[str, Any]) -> dict[str, Any]:
    return next((value for value in event.values() if isinstance(value, dict)), {})


def transitions(event: dict[str, Any]) -> list[dict[str, Any]]:
    return nested(event).get("stateTransitions", [])


def spans(event: dict[str, Any]) -> list[dict[str, Any]]:
    return nested(event).get("profileEvents", {}).get("events", [])


def cut_event(event: dict[str, Any], moment: int) -> dict[str, Any]:
    """The event as it would have been if it had been sent at the moment."""
    event = json.loads(json.dumps(event))
    inner = nested(event)
    if "stateTransitions" in inner:
        inner["stateTransitions"] = [t for t in inner["stateTransitions"] if ns_of(t) <= moment]
        reached = {t["state"] for t in inner["stateTransitions"]}
        if not reached & {"FAILED"}:
            inner.pop("rayErrorInfo", None)
        if not reached & {"SUBMITTED_TO_WORKER", "RUNNING"} and "workerPid" in inner:
            inner["nodeId"] = inner["workerId"] = ""
    for span_holder in [inner.get("profileEvents")] if "profileEvents" in inner else []:
        span_holder["events"] = [span for span in span_holder["events"] if int(span["endTime"]) <= moment]
    return event


def test_as_of_the_end_is_the_final_state(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    running = fold_session(tmp_path, None)
    final, at_the_end = tables(tmp_path, running), tables_as_of(tmp_path, running, END.ns)
    assert same_spans(at_the_end.pop("profile_events")) == same_spans(final.pop("profile_events"))
    assert at_the_end == final


def test_a_dead_workers_and_a_finished_jobs_tasks_are_failed_as_ray_does(tmp_path: Path) -> None:
    """Ray marks them in its own memory and does not export it."""
    put(tmp_path, 0, as_lines(RECORDED))
    manifest = fold_session(tmp_path, None)
    found = rows(tmp_path, manifest, "SELECT state, error_type, error_message, closed_by_history FROM tasks "
                 "WHERE name = 'sleeper'")  # fmt: skip
    assert len(found) == 1
    state, kind, message, by_history = found[0]
    assert (state, kind, by_history) == ("FAILED", "WORKER_DIED", False)
    assert "died with exit_type: 3 with error_message: Worker force exited" in message


@pytest.mark.parametrize(("clean", "status", "word"), [(True, "STOPPED", "ended"), (False, "FAILED", "vanished")])
def test_what_was_open_is_closed_at_the_end_and_marked(tmp_path: Path, clean: bool, status: str, word: str) -> None:
    """Clean ends stop jobs, vanished ones fail them; nothing stays RUNNING for ever."""
    ended_ns = 1_794_770_340_000_000_000
    events = [cut_event(event, ended_ns) for event in RECORDED if first_ns(event) <= ended_ns]
    put(tmp_path, 0, as_lines(events))
    closing = Closing(ended_ns + 10**9, clean=clean)
    manifest = fold_session(tmp_path, closing)
    jobs = rows(tmp_path, manifest, "SELECT status, message, closed_by_history, end_time FROM jobs WHERE type='DRIVER'")
    assert jobs[0][0] == status
    assert f"The session {word} at 2026-11-15T19:19:" in jobs[0][1]
    assert jobs[0][2] is True
    open_tasks = rows(tmp_path, manifest, "SELECT DISTINCT state, error_type FROM tasks WHERE closed_by_history")
    assert open_tasks == [("FAILED", "NODE_DIED")]
    assert manifest.counts.failed_tasks == fold_session(tmp_path, None).counts.failed_tasks, "closing is no failure"
    assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE state NOT IN ('FINISHED', 'FAILED')") == [(0,)]
    assert rows(tmp_path, manifest, "SELECT DISTINCT state FROM actors") == [("DEAD",)]
    assert rows(tmp_path, manifest, "SELECT state, closed_by_history FROM nodes") == [("DEAD", True)]
    assert rows(tmp_path, manifest, "SELECT bool_or(is_alive) FROM workers") == [(False,)]
    kinds = {kind for (kind,) in rows(tmp_path, manifest, "SELECT kind FROM gaps")}
    assert {"job closed at the session's end", "node closed at the session's end"} <= kinds


def test_an_index_is_used_again_and_a_damaged_one_is_not_trusted(tmp_path: Path) -> None:
    """The next fold takes the earlier rows only if all of them are there."""
    put(tmp_path, 0, as_lines(RECORDED))
    first = fold_session(tmp_path)
    expected = tables(tmp_path, first)
    (damaged,) = files_of(tmp_path, first, MERGED + "task_updates")
    damaged.write_bytes(damaged.read_bytes()[:-10])
    second = fold_session(tmp_path)
    assert second.generation == 2
    assert second.events == len(RECORDED)
    assert tables(tmp_path, second) == expected


BAD_OBJECTS = {
    "truncated gzip": (gzip.compress(as_lines(RECORDED))[:-400], ".jsonl.gz", {"truncated gzip", "unreadable line"}),
    "damaged gzip": (gzip.compress(as_lines(RECORDED[:20])) + gzip.compress(as_lines(RECORDED))[:30] + b"!" * 90,
                     ".jsonl.gz", {"truncated gzip"}),
    "many gzip members": (b"".join(gzip.compress(as_lines([event])) for event in RECORDED), ".jsonl.gz", set()),
    "zstd": (zstandard.compress(as_lines(RECORDED)), ".jsonl", set()),
    "truncated zstd": (zstandard.compress(as_lines(RECORDED)) + zstandard.compress(as_lines(RECORDED))[:-400], ".jsonl",
                       {"truncated zstd", "unreadable line"}),
    "half a last line": (as_lines(RECORDED)[:-50], ".jsonl", {"unreadable line"}),
    "invalid UTF-8": (as_lines(RECORDED) + b'{"eventType": "\xff\xfe"}\n', ".jsonl", {"unreadable line"}),
    "a JSON array": (json.dumps(RECORDED).encode(), "", set()),
    "blank lines": (as_lines(RECORDED).replace(b"\n", b"\n\n  \n"), ".jsonl", set()),
    "garbage between": (as_lines(RECORDED[:9]) + b"\x00\x01garbage\n[]\n7\n" + as_lines(RECORDED[9:]), ".jsonl",
                        {"unreadable line", "line that is not an event"}),
    "an empty object": (b"", ".jsonl", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_OBJECTS)
def test_a_bad_object_costs_what_is_bad_in_it_and_is_counted(tmp_path: Path, name: str) -> None:
    data, suffix, kinds = BAD_OBJECTS[name]
    put(tmp_path, 0, data, suffix=suffix)
    put(tmp_path, 1, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    found = {kind for (kind,) in rows(tmp_path, manifest, f"SELECT DISTINCT kind FROM gaps WHERE {WRONG}")}
    assert found == kinds
    assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'") == [(23,)]


PLACEMENT_GROUPS = "/api/v0/placement_groups?detail=1&limit=10000"


def keep_answer(directory: Path, body: bytes, modified: int, uri: str = PLACEMENT_GROUPS) -> None:
    """As KubeRay's collector keeps it."""
    path = directory / Layout().endpoint_key(REF, uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    os.utime(path, (modified, modified))


@pytest.mark.parametrize("body", [b'{"data": "\xff"}', b"[" * 100_000, b"no"], ids=["no text", "depth", "no JSON"])
def test_an_answer_that_cannot_be_read_is_counted(tmp_path: Path, body: bytes) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    keep_answer(tmp_path, body, 1_794_770_400)
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {WRONG}") == [
        ("unreadable answer of the dashboard", 1)
    ]
    assert manifest.counts.tasks == 23


def test_an_answer_that_is_written_over_is_read_again(tmp_path: Path) -> None:
    """The new one may be as long as the old one, or of the same second."""
    put(tmp_path, 0, as_lines(RECORDED))
    body = (Path(__file__).parents[1] / "data/ray-2.60/endpoints/v0_placement_groups_detail.json").read_bytes()
    for state, modified in (b"CREATED", 1_794_770_400), (b"REMOVED", 1_794_770_401):
        answer = body.replace(b'"REMOVED"', b'"%s"' % state)
        keep_answer(tmp_path, answer, modified)
        manifest = fold_session(tmp_path)
        assert rows(tmp_path, manifest, "SELECT DISTINCT state FROM placement_groups") == [(state.decode(),)]
    keep_answer(tmp_path, answer + b"\n", modified)
    assert fold_session(tmp_path).covered != manifest.covered


def lifecycle(**changes: Any) -> dict[str, Any]:
    event = next(json.loads(json.dumps(event)) for event in RECORDED if event["eventType"] == "TASK_LIFECYCLE_EVENT")
    event["taskLifecycleEvent"] |= changes
    return event


def node_definition(**changes: Any) -> dict[str, Any]:
    event = next(json.loads(json.dumps(event)) for event in RECORDED if event["eventType"] == "NODE_DEFINITION_EVENT")
    event["nodeDefinitionEvent"] |= changes
    return event


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (lifecycle(taskId="AAAA"), "not a task id"),
        (lifecycle(stateTransitions=[{"state": "FLYING", "timestamp": "2026-11-15T19:18:40Z"}]), "unknown task state"),
        (
            lifecycle(stateTransitions=[{"state": "RUNNING", "timestamp": "99999-01-01T00:00:00Z"}]),
            "unknown task state",
        ),
        ({"eventType": "FROM_THE_FUTURE_EVENT", "timestamp": "2026-11-15T19:18:40Z"}, "unknown event type"),
        (lifecycle(somethingNew={"a": [1]}), "unknown field"),
        (lifecycle() | {"timestamp": "yesterday"}, "event without a readable time"),
        (lifecycle(workerPid=2**80), None),
        (lifecycle(taskAttempt=2**80), "row without its key"),
        (
            lifecycle(stateTransitions=[{"state": "FINISHED", "timestamp": "2300-01-01T00:00:00Z"}]),
            "unknown task state",
        ),
        (lifecycle(stateTransitions=[], taskState={"99": "2026-11-15T19:18:40Z"}), "unknown task state"),
        (lifecycle(stateTransitions=[], taskState={"11": "yesterday"}), "unknown task state"),
        (lifecycle(stateTransitions=[], taskState={"13": "2026-11-15T19:18:40Z"}), None),
        (node_definition(startTimestamp="9999-12-31T23:59:59Z"), "unknown node state or time"),
        (lifecycle(workerPid="16293", taskAttempt="0"), None),
        (lifecycle(jobId=7, isDebuggerPaused="true"), None),
    ],
)
def test_an_odd_event_is_mended_or_counted_and_never_stops_the_fold(
    tmp_path: Path, event: dict[str, Any], kind: str | None
) -> None:
    put(tmp_path, 0, as_lines([event]))
    put(tmp_path, 1, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    found = [kind for (kind,) in rows(tmp_path, manifest, f"SELECT kind FROM gaps WHERE {WRONG}")]
    assert (found == []) if kind is None else (len(found) == 1 and found[0].startswith(kind))


def test_an_event_that_is_new_and_deep_costs_itself_alone(tmp_path: Path) -> None:
    """What is mended is written out again, which has its own depth; the nearer to it, the more is on the stack."""
    depths = range(900, 1001)
    deep = b"".join(b'{"new": 1, "platformEvent": %b}\n' % (b"[" * depth + b"]" * depth) for depth in depths)
    put(tmp_path, 0, as_lines(RECORDED) + deep)
    manifest = fold_session(tmp_path)
    assert manifest.counts.tasks == 23
    counts = dict(rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {WRONG}"))
    assert counts["event nested too deeply"] + counts["unknown field"] == len(depths)


@pytest.mark.parametrize("late", ["2262-04-11T23:47:16.854775807Z", "9999-12-31T23:59:59.999999999Z"])
def test_an_event_from_beyond_all_clocks_does_not_move_the_end(tmp_path: Path, late: str) -> None:
    """Of a session of which only its events tell when it ended."""
    put(tmp_path, 0, as_lines([*RECORDED, RECORDED[0] | {"eventId": "another", "timestamp": late}]))
    manifest = fold_session(tmp_path, Closing(0, clean=True))
    assert manifest.last_ns == max(ns_of(event) for event in RECORDED)
    assert rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {WRONG}") == [
        ("event without a readable time", 1)
    ]
    [(message,)] = rows(tmp_path, manifest, "SELECT message FROM jobs WHERE closed_by_history")
    assert message == "The session ended at 2026-11-15T19:21:53Z before Ray reported an end."


def test_a_session_that_ended_nobody_knows_when_did_not_end_in_1970(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines([event | {"timestamp": "yesterday"} for event in RECORDED]))
    manifest = fold_session(tmp_path, Closing(0, clean=True))
    assert manifest.last_ns is None
    assert rows(tmp_path, manifest, "SELECT status, message, end_time FROM jobs WHERE closed_by_history") == [
        ("STOPPED", "The session ended before Ray reported an end.", None)
    ]


def test_gaps_do_not_grow_with_the_events(tmp_path: Path) -> None:
    """A state from the future is told once, and of things that are all different some hundred."""
    times = [f"2026-11-15T19:18:40.{number:03}Z" for number in range(500)]
    flying = [lifecycle(stateTransitions=[{"state": "FLYING", "timestamp": time}]) for time in times]
    unreadable = [lifecycle(stateTransitions=[{"state": "RUNNING", "timestamp": f"~{time}"}]) for time in times]
    jobs = [{"eventType": f"EVENT_{number}", "timestamp": times[0]} for number in range(500)]
    put(tmp_path, 0, as_lines([*flying, *unreadable, *jobs]))
    manifest = fold_session(tmp_path)
    found = rows(tmp_path, manifest, f"SELECT kind, detail, count FROM gaps WHERE {WRONG}")
    assert ("unknown task state or time", "FLYING", 500) in found
    for kind, total in ("unknown task state or time", 1000), ("unknown event type", 500):
        counts = {detail: count for each, detail, count in found if each == kind}
        assert (sum(counts.values()), len(counts)) == (total, 201)
        assert counts[""] > 200


def only_tasks(*tasks: dict[str, Any]) -> dict[str, Any]:
    body = {"data": {"result": {"result": tasks}}}
    answer = {"uri": "/api/v0/tasks?detail=1", "only": True, "body": body}
    return {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:18:41Z", "dashboardSnapshot": answer}


@pytest.mark.parametrize("memory", ["1Gi", "16Ki"], ids=["in one piece", "in parts"])
@pytest.mark.parametrize(
    "key", [{"task_id": None}, {"task_id": ""}, {"task_id": 7}, {"attempt_number": None}, {"attempt_number": 2**80}],
    ids=str,
)  # fmt: skip
def test_a_row_without_its_key_is_counted_and_not_kept(tmp_path: Path, memory: str, key: dict[str, Any]) -> None:
    good = {"task_id": "ab" * 24, "attempt_number": 0, "job_id": "01000000", "state": "RUNNING"}
    put(tmp_path, 0, as_lines([*RECORDED, only_tasks(good | key, good)]))
    manifest = fold_session(tmp_path, memory=memory)
    assert manifest.counts.tasks == 24
    assert rows(tmp_path, manifest, f"SELECT kind, detail, count FROM gaps WHERE {WRONG} ORDER BY detail") == [
        ("row without its key", "task_definitions", 1),
        ("row without its key", "task_updates", 1),
    ]


def test_a_value_that_does_not_fit_is_left_out_and_told(tmp_path: Path) -> None:
    events = [{"state": "RUNNING", "created_ms": 1_794_770_321_000}, {"state": "FINISHED", "created_ms": 10**30}]
    task = {"task_id": "ab" * 24, "attempt_number": 0, "job_id": "01000000", "worker_pid": "7", "events": events}
    put(tmp_path, 0, as_lines([only_tasks(task)]))
    manifest = fold_session(tmp_path, None)
    assert rows(tmp_path, manifest, "SELECT state, worker_pid FROM tasks") == [("RUNNING", None)]
    assert rows(tmp_path, manifest, f"SELECT kind, detail FROM gaps WHERE {WRONG} ORDER BY detail") == [
        ("value that does not fit", "task_updates.finished_ns"),
        ("value that does not fit", "task_updates.worker_pid"),
    ]


def snake(value: Any) -> Any:
    if isinstance(value, list):
        return [snake(item) for item in value]
    if isinstance(value, dict):
        plain = {"requiredResources", "labels", "resources", "metadata", "labelSelector"}
        return {
            "".join(f"_{c.lower()}" if c.isupper() else c for c in key): item if key in plain else snake(item)
            for key, item in value.items()
        }
    return value


def test_both_spellings_of_field_names_give_the_same_tables(tmp_path: Path) -> None:
    """Ray can be told to keep the names of its protocol buffers."""
    put(tmp_path / "camel", 0, as_lines(RECORDED))
    put(tmp_path / "snake", 0, as_lines([snake(event) for event in RECORDED]))
    camel_tables = tables(tmp_path / "camel", fold_session(tmp_path / "camel"))
    snake_tables = tables(tmp_path / "snake", fold_session(tmp_path / "snake"))
    assert same_spans(snake_tables.pop("profile_events")) == same_spans(camel_tables.pop("profile_events"))
    for name, expected in camel_tables.items():
        assert repr(snake_tables[name]).replace(" ", "") == repr(expected).replace(" ", ""), name


def test_ray_2_49s_execution_events_are_read(tmp_path: Path) -> None:
    """States were a map from number to time, and the event had another name."""
    event = lifecycle()
    nested_event = event.pop("taskLifecycleEvent")
    nested_event["taskState"] = {"8": "2026-11-15T19:18:46.669Z", "11": "2026-11-15T19:18:49.068Z"}
    del nested_event["stateTransitions"]
    put(tmp_path, 0, as_lines([event | {"eventType": "TASK_EXECUTION_EVENT", "taskExecutionEvent": nested_event}]))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT state, start_time_ms, end_time_ms FROM tasks") == [
        ("FINISHED", 1794770326669, 1794770329068)
    ]


ACTOR = b'"actorId": "44J0ulW4IOXyL/vNAgAAAA=="'
DEAD = b'"state": "DEAD", "timestamp": "2026-11-15T19:18:40Z"'
ODD_JOB = {
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


def dying(cause: bytes) -> bytes:
    transition = b"{%b, %b}" % (DEAD, b'"deathCause": ' + cause)
    return b'{"actorLifecycleEvent": {%b, "stateTransitions": [%b]}}' % (ACTOR, transition)


ODD_INSIDE = {
    "invalid UTF-8 in a map": b'{"actorDefinitionEvent": {%b, "labelSelector": {"a": "\xff"}}}' % ACTOR,
    "a number beyond all bounds": dying(b'{"x": 1e999}'),
    "nesting without end": dying(b'{"a":' * 900 + b"1" + b"}" * 900),
    "a time that is none": b'{"exportRecord": {"file": "f", "line": {"source_type": "EXPORT_SUBMISSION_JOB", '
    b'"timestamp": "inf", "event_data": {"submission_job_id": "x", "status": "RUNNING"}}}}',
    "texts for numbers in a snapshot": b'{"timestamp": "2026-11-15T19:18:40Z", "dashboardSnapshot": '
    b'{"uri": "/api/jobs/", "body": [%b]}}' % json.dumps(ODD_JOB).encode(),
}


@pytest.mark.parametrize("name", ODD_INSIDE)
def test_what_is_odd_deep_inside_an_event_does_not_stop_the_fold(tmp_path: Path, name: str) -> None:
    """The parts of an event that are kept as they came are looked into, and may be anything."""
    put(tmp_path, 0, ODD_INSIDE[name] + b"\n")
    put(tmp_path, 1, as_lines(RECORDED))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'") == [(23,)]


def test_a_line_longer_than_what_is_read_at_once_is_whole(tmp_path: Path) -> None:
    event = json.loads(json.dumps(next(e for e in RECORDED if e["eventType"] == "TASK_DEFINITION_EVENT")))
    event["taskDefinitionEvent"]["callSite"] = "x" * 9_000_000
    put(tmp_path, 0, as_lines([event]) + as_lines(RECORDED[:3]))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT max(length(call_site)) FROM tasks") == [(9_000_000,)]
    assert rows(tmp_path, manifest, f"SELECT * FROM gaps WHERE {WRONG}") == []


def jobs_snapshot(at: str, *jobs: dict[str, Any]) -> dict[str, Any]:
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": at,
        "dashboardSnapshot": {"uri": "/api/jobs/", "body": jobs},
    }


def submitted(name: str, status: str, start_ms: int, end_ms: int | None = None) -> dict[str, Any]:
    return {"type": "SUBMISSION", "submission_id": name, "job_id": None, "entrypoint": "x", "runtime_env": {},
            "metadata": {}, "status": status, "message": None, "error_type": None, "start_time": start_ms,
            "end_time": end_ms}  # fmt: skip


def test_a_job_that_had_ended_at_a_moment_is_not_running_then(tmp_path: Path) -> None:
    """It is seen again in every later answer of the dashboard, which does not make it younger."""
    ms = 1_794_770_320_000
    done = submitted("one", "SUCCEEDED", ms, ms + 2_000)
    put(tmp_path, 0, as_lines([
        jobs_snapshot("2026-11-15T19:18:41Z", submitted("one", "RUNNING", ms)),
        jobs_snapshot("2026-11-15T19:18:43Z", done),
        jobs_snapshot("2026-11-15T19:18:50Z", done, submitted("two", "RUNNING", ms + 9_000)),
    ]))  # fmt: skip
    manifest = fold_session(tmp_path, None)

    def at(moment: int) -> list[tuple[Any, ...]]:
        return tables_as_of(tmp_path, manifest, moment * 1_000_000)["jobs"]

    assert [(row[2], row[8]) for row in at(ms + 5_000)] == [("one", "SUCCEEDED")]
    assert [(row[2], row[8]) for row in at(ms + 1_000)] == [("one", "RUNNING")]


def groups_snapshot(at: str, *states: str, **more: Any) -> dict[str, Any]:
    groups = [
        {"placement_group_id": f"{number:036x}", "name": "", "creator_job_id": "01000000", "state": state, **more}
        for number, state in enumerate(states)
    ]
    body = {"data": {"result": {"result": groups}}}
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": at,
        "dashboardSnapshot": {"uri": PLACEMENT_GROUPS, "body": body},
    }


def test_a_moment_knows_what_the_last_answer_before_it_told(tmp_path: Path) -> None:
    """Of placement groups and submissions only the latest state is kept: later answers do not reach back."""
    ms = 1_794_770_320_000
    driver = {"job_id": "01000000", "driver_node_id": NODE}
    put(tmp_path, 0, as_lines([
        groups_snapshot("2026-11-15T19:18:41Z", "PENDING"),
        jobs_snapshot("2026-11-15T19:18:41Z", submitted("one", "PENDING", ms)),
        groups_snapshot("2026-11-15T19:18:43Z", "CREATED", "PENDING", stats={"creation_request_received_ns": "soon"}),
        jobs_snapshot("2026-11-15T19:18:43Z", submitted("one", "RUNNING", ms) | driver),
        groups_snapshot("2026-11-15T19:18:45Z", "REMOVED", "CREATED"),
        groups_snapshot("2026-11-15T19:18:50Z", "REMOVED", "CREATED"),
        jobs_snapshot("2026-11-15T19:18:50Z", submitted("one", "FAILED", ms, ms + 10_000) | driver),
    ]))  # fmt: skip
    manifest = fold_session(tmp_path, None)

    def at(seconds: int) -> tuple[list[Any], list[Any]]:
        found = tables_as_of(tmp_path, manifest, (ms + seconds * 1000) * 1_000_000)
        return [row[3] for row in found["placement_groups"]], [(row[8], row[1], row[7]) for row in found["jobs"]]

    assert at(0) == ([], [("PENDING", None, None)])
    assert at(2) == (["PENDING"], [("PENDING", None, None)])
    assert at(4) == (["CREATED", "PENDING"], [("RUNNING", "01000000", NODE)])
    assert at(7) == (["REMOVED", "CREATED"], [("RUNNING", "01000000", NODE)])
    assert at(11) == (["REMOVED", "CREATED"], [("FAILED", "01000000", NODE)])


@pytest.mark.parametrize("late", [10**16, 2**61, 10**30, -1, "2026-11-15T19:18:08Z" * 1000])
def test_a_time_beyond_all_clocks_stops_neither_the_fold_nor_a_moment(tmp_path: Path, late: Any) -> None:
    """And costs no memory: what is a text is not multiplied."""
    worker = "ab" * 28
    told = {"worker_id": worker, "node_id": NODE, "worker_type": "WORKER", "ip": "", "exit_type": "", "pid": 7}
    node = {"node_id": NODE, "node_ip": "", "node_name": "", "labels": {}, "resources_total": {}, "is_head_node": True}
    answers = {
        "/api/v0/workers?detail=1": {"data": {"result": {"result": [told | {"end_time_ms": late}]}}},
        "/api/v0/nodes?detail=1": {"data": {"result": {"result": [node | {"start_time_ms": late}]}}},
        "/api/jobs/": [
            submitted("one", "FAILED", late, late),
            {"type": "DRIVER", "job_id": "01000000", "entrypoint": "x", "runtime_env": {}, "metadata": {},
             "start_time": late, "end_time": late},
        ],
    }  # fmt: skip
    snapshots = [
        {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:18:41Z",
         "dashboardSnapshot": {"uri": uri, "body": body}}
        for uri, body in answers.items()
    ]  # fmt: skip
    put(tmp_path, 0, as_lines([*snapshots, lifecycle(workerId=base64.b64encode(bytes.fromhex(worker)).decode())]))
    put_event_log(tmp_path, {"source_type": "JOBS", "timestamp": late, "event_id": "1",
                             "message": "Completed a ray job with a status FAILED.",
                             "custom_fields": {"submission_id": "one"}})  # fmt: skip
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT count(*) FROM workers") == [(2,)]
    assert max(len(str(row)) for row in tables(tmp_path, manifest)["nodes"]) < 10_000
    tables_as_of(tmp_path, manifest, 1_794_770_400_000_000_000)


def test_many_large_answers_are_in_files_of_bounded_size(tmp_path: Path) -> None:
    """Of a long session of many nodes there are thousands: who looks for the last one must not unpack them all."""

    def answers(first: int) -> bytes:
        return as_lines([
            {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": f"2026-11-15T19:{minute:02}:00Z",
             "dashboardSnapshot": {"uri": uri, "body": {"minute": minute, "more": "x" * 2**20}}}
            for minute in range(first, first + 10) for uri in ("/nodes?view=summary", "/api/cluster_status")
        ])  # fmt: skip

    put(tmp_path, 0, answers(0))
    assert len(fold_session(tmp_path).files["snapshots"]) == 3
    put(tmp_path, 1, answers(10))
    manifest = fold_session(tmp_path)
    assert len(manifest.files["snapshots"]) == 6
    query = "SELECT uri, count(*), max(body->>'minute') FROM {} GROUP BY 1 ORDER BY 1"
    last = [("/api/cluster_status", 20, "9"), ("/nodes?view=summary", 20, "9")]
    assert rows(tmp_path, manifest, query.format("snapshots")) == last
    moment = parse_ns("2026-11-15T19:05:30Z")
    assert moment
    assert len(tables_as_of(tmp_path, manifest, moment)["snapshots"]) == 12


def put_event_log(directory: Path, *lines: dict[str, Any]) -> None:
    path = directory / f"{Layout().logs_prefix(REF, NODE)}/events/event_JOBS.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(as_lines(list(lines)))


def test_a_seal_that_comes_after_the_fold_is_counted(tmp_path: Path) -> None:
    """A worker's collector seals after its last object."""
    put(tmp_path, 0, as_lines(RECORDED))
    before = fold_session(tmp_path)
    path = tmp_path / Layout().node_seal_key(REF, NODE)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"node_id": NODE, "sealed_ms": 1, "dropped": 2}))
    after = fold_session(tmp_path)
    assert after.covered != before.covered
    assert (after.events, after.counts.gaps - before.counts.gaps) == (before.events, 2)


def test_what_a_collector_counted_as_lost_is_counted_once(tmp_path: Path) -> None:
    """However often the index is extended."""
    seal = {"node_id": NODE, "sealed_ms": 1, "set_aside": 3, "dropped": 2}
    path = tmp_path / Layout().node_seal_key(REF, NODE)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(seal))
    for number in range(3):
        put(tmp_path, number, as_lines(RECORDED[number * 50 : (number + 1) * 50]))
        manifest = fold_session(tmp_path)
    found = rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {WRONG} ORDER BY kind")
    assert found == [("event dropped", 2), ("event set aside by the collector", 3)]
    assert manifest.counts.gaps == 5 + 2, "and two tasks of which Ray sent no definition"


def test_repeated_events_are_told_and_not_called_missing(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:7] + RECORDED))
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, f"SELECT count FROM gaps WHERE kind = '{REPEATED}'") == [(4 + 7,)]  # 4 by Ray
    assert manifest.counts.gaps == 2, "tasks of which Ray sent no definition"


def test_clocks_that_are_apart_are_told(tmp_path: Path) -> None:
    """The worker says that it began two seconds before the owner sent it the task."""
    owner = lifecycle(stateTransitions=[{"state": "SUBMITTED_TO_WORKER", "timestamp": "2026-11-15T19:18:42Z"}])
    worker = lifecycle(stateTransitions=[{"state": "RUNNING", "timestamp": "2026-11-15T19:18:40Z"}])
    put(tmp_path, 0, as_lines([owner, worker | {"eventId": "another"}]))
    manifest = fold_session(tmp_path)
    kinds = {kind for (kind,) in rows(tmp_path, manifest, "SELECT kind FROM gaps")}
    assert "task whose owner and worker had clocks more than a second apart" in kinds
    assert manifest.counts.gaps == 2, "that, and a task without a definition"


@pytest.mark.parametrize("memory", ["16Ki", "64Ki"])
def test_a_session_folded_in_parts_has_the_same_tables(tmp_path: Path, memory: str) -> None:
    """In one piece, in parts, and in parts after a generation that was in one piece, or in others."""
    put(tmp_path, 0, as_lines(RECORDED[:70]))
    put(tmp_path, 1, as_lines(RECORDED[70:]))
    expected = tables(tmp_path, fold_session(tmp_path))
    in_parts = fold_session(tmp_path, memory=memory, fresh=True)
    assert len(in_parts.files["tasks"]) > 4
    assert tables(tmp_path, in_parts) == expected
    put(tmp_path, 2, as_lines([lifecycle()]))
    again = fold_session(tmp_path, memory="32Ki")
    assert 1 < len(again.files["tasks"]) != len(in_parts.files["tasks"])
    assert {name: found for name, found in tables(tmp_path, again).items() if name != "gaps"} == {
        name: found for name, found in expected.items() if name != "gaps"
    }
    moment = 1_794_770_327_000_000_000
    assert tables_as_of(tmp_path, again, moment) == tables_as_of(tmp_path, fold_session(tmp_path, fresh=True), moment)


def test_a_session_that_is_worth_it_is_merged_by_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, as_lines(RECORDED[:70]))
    put(tmp_path, 1, as_lines(RECORDED[70:]))
    with ThreadPoolExecutor(2) as pool:
        alone = fold_session(tmp_path, pool=pool)
        monkeypatch.setattr("rayhistory.index.fold._WORTH_A_PROCESS", 1)
        shared = fold_session(tmp_path, fresh=True, pool=pool)
    assert (len(alone.files["tasks"]), len(shared.files["tasks"])) == (1, cores())
    assert tables(tmp_path, shared) == tables(tmp_path, alone)


@QUICK
@given(st.lists(st.text(alphabet="0123456789abcdef", min_size=48, max_size=48)), st.integers(1, 300))
def test_every_task_is_in_one_part(task_ids: list[str], number: int) -> None:
    parts = Parts(number)
    places = dict(parts.split(task_ids))
    assert sorted(place for found in places.values() for place in found) == list(range(len(task_ids)))
    with duckdb.connect(config={"threads": 1}) as database:
        for part, found in places.items():
            chosen = [task_ids[place] for place in found]
            condition = parts.condition(part)
            query = f"SELECT count(*) FROM (SELECT unnest(?::VARCHAR[]) AS task_id) WHERE {condition}"
            assert database.execute(query, [task_ids]).fetchall() == [(len(chosen),)]


@QUICK
@given(st.lists(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2200, 1, 1)), max_size=5), st.data())  # noqa: DTZ001
def test_times_read_together_are_those_read_one_by_one(moments: list[datetime], data: st.DataObject) -> None:
    def spelled(moment: datetime) -> str:
        fraction = data.draw(
            st.sampled_from(["", ".5", ".123", ".123456", ".000000001", ".999999999", ".12+01:00", ".x"])
        )
        return (
            moment.strftime("%Y-%m-%dT%H:%M:%S") + fraction + data.draw(st.sampled_from(["Z", "Z", "Z", "", "+00:00"]))
        )

    texts = [spelled(moment) for moment in moments]
    assert list(parse_all(texts)) == [parse_ns(text) for text in texts]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_what_unpacks_to_a_gigabyte_is_unpacked_piece_by_piece(pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(b" " * 2**28) * 4
    pieces = unpacker(bomb[:8])
    assert pieces
    sizes = [len(piece) for piece in pieces.feed(bomb)]
    assert sum(sizes) == 2**30
    assert max(sizes) <= 2**23
    assert not pieces.truncated


def test_an_object_that_disappears_while_it_is_read_is_told(tmp_path: Path) -> None:
    """Whoever removes sessions by hand may do so at any time."""
    gone = Source(put(tmp_path, 1, as_lines(RECORDED)), 10_000, Kind.EVENTS)
    (tmp_path / gone.key).unlink()
    settings, scratch = settings_for(tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    assert asyncio.run(decode(Decoding(settings, scratch, Parts()), [gone], "0")).events == 0
    (told,) = scratch.glob("gaps-*.parquet")
    assert [row[1] for row in read([told])] == ["object that disappeared while it was read"]
