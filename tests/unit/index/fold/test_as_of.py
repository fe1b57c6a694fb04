"""Tables as of a point in time contain nothing that came later."""

import base64
import copy
import os
import random
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayhistory.events.times import parse_ns
from rayhistory.sessions import Layout
from support.as_of_reference import tasks_as_of
from support.event_samples import (
    cut_event,
    first_ns,
    jobs_response,
    lifecycle,
    ns_of,
    placement_groups_response,
    spans,
    submitted_job,
    transitions,
)
from support.folding import (
    END,
    NODE,
    RECORDED,
    REF,
    as_lines,
    build_as_of,
    fold_session,
    put,
    rows,
    same_spans,
    served_tables,
    tables,
    tables_as_of,
)
from support.skewed_events import EVENTS as SKEWED

LAWS = settings(
    max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def at(second: int) -> str:
    return f"2026-11-15T19:19:{second:02}Z"


def ns(second: int) -> int:
    found = parse_ns(at(second))
    assert found
    return found


def task_update(second: int, **changes: Any) -> dict[str, Any]:
    """An event about the same attempt each time."""
    event: dict[str, Any] = copy.deepcopy(
        next(event for event in RECORDED if event["eventType"] == "TASK_LIFECYCLE_EVENT")
    )
    event["taskLifecycleEvent"] |= {"stateTransitions": []} | changes
    return event | {"eventId": f"at {second}", "timestamp": at(second)}


RUNNING = task_update(10, stateTransitions=[{"state": "RUNNING", "timestamp": at(10)}])


@pytest.mark.slow
@pytest.mark.parametrize("second", [15, 25, 35])
def test_debugger_pause_is_known_as_of_each_time(tmp_path: Path, second: int) -> None:
    events = [RUNNING, task_update(20, isDebuggerPaused=True), task_update(30, isDebuggerPaused=False)]
    earlier = [event for event in events if (parse_ns(event["timestamp"]) or 0) <= ns(second)]
    put(tmp_path / "all", 0, as_lines(events))
    put(tmp_path / "earlier", 0, as_lines(earlier))
    columns = "state, is_debugger_paused"
    shown = tables_as_of(tmp_path / "all", fold_session(tmp_path / "all", None), ns(second), columns)["tasks"]
    assert shown == tables(tmp_path / "earlier", fold_session(tmp_path / "earlier", None), columns)["tasks"]
    assert shown == [("RUNNING", {15: None, 25: True, 35: False}[second])]


@pytest.mark.slow
def test_driver_without_lifecycle_event_is_listed_from_its_definition_on(tmp_path: Path) -> None:
    """A lost lifecycle event must not hide the driver."""
    definition = next(event for event in RECORDED if event["eventType"] == "DRIVER_JOB_DEFINITION_EVENT")
    put(tmp_path, 0, as_lines([definition | {"timestamp": at(10)}, RUNNING | {"timestamp": at(50)}]))
    manifest = fold_session(tmp_path, None)
    last = [row[:3] for row in tables(tmp_path, manifest)["jobs"]]
    assert len(last) == 1
    assert [row[:3] for row in tables_as_of(tmp_path, manifest, ns(11))["jobs"]] == last
    assert tables_as_of(tmp_path, manifest, ns(9))["jobs"] == []


@pytest.mark.slow
def test_second_error_of_an_attempt_is_not_shown_before_its_time(tmp_path: Path) -> None:
    """Merged rows hold only the last error, so that the first one is unknown."""
    first, second = ({"state": "FAILED", "timestamp": at(when)} for when in (20, 30))
    events = [
        task_update(20, stateTransitions=[first], rayErrorInfo={"errorType": "WORKER_DIED", "errorMessage": "one"}),
        task_update(30, stateTransitions=[second], rayErrorInfo={"errorType": "NODE_DIED", "errorMessage": "two"}),
    ]
    put(tmp_path, 0, as_lines(events))
    manifest = fold_session(tmp_path, None)
    columns = "state, error_type, error_message"
    assert tables_as_of(tmp_path, manifest, ns(25), columns)["tasks"] == [("FAILED", None, None)]
    assert tables_as_of(tmp_path, manifest, ns(30), columns)["tasks"] == [("FAILED", "NODE_DIED", "two")]


@pytest.mark.slow
def test_table_built_by_itself_equals_the_one_built_with_all(tmp_path: Path) -> None:
    """Pages wait only for the tables that they need. Some tasks have only a profile, some only their driver's half."""
    without = [event for event in RECORDED if event["eventType"] != "TASK_DEFINITION_EVENT" or "2" in event["eventId"]]
    put(tmp_path, 0, as_lines(without))
    manifest = fold_session(tmp_path)
    as_of_ns = ((manifest.first_ns or 0) + (manifest.last_ns or 0)) // 2
    together = build_as_of(tmp_path, manifest, as_of_ns, served_tables(manifest))
    assert together["tasks"]
    assert together["profile_events"]
    for name in ("tasks", "task_list", "profile_events", "gaps"):
        assert build_as_of(tmp_path, manifest, as_of_ns, [name]) == {name: together.pop(name)}
    assert build_as_of(tmp_path, manifest, as_of_ns, list(together)) == together


@pytest.mark.slow
@LAWS
@given(seed=st.integers(0, 10**6))
def test_as_of_equals_folding_only_earlier_events(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """The point in time is in a quiet interval, because Ray sends related events microseconds apart."""
    full, early = tmp_path_factory.mktemp("full"), tmp_path_factory.mktemp("early")
    times = sorted(ns_of(event) for event in RECORDED)
    quiet = [time for time, following in pairwise(times) if following - time > 20_000_000]
    as_of_ns = quiet[seed % len(quiet)] + 10_000_000
    earlier = [cut_event(event, as_of_ns) for event in RECORDED if first_ns(event) <= as_of_ns]
    put(full, 0, as_lines(RECORDED))
    put(early, 0, as_lines([event for event in earlier if event]))
    columns = "task_id, attempt_number, name, state, error_type, creation_time_ms, start_time_ms, end_time_ms, defined"
    expected = tables(early, fold_session(early, None), columns)
    actual = tables_as_of(full, fold_session(full), as_of_ns, columns)
    for name in ("tasks", "actors", "nodes", "jobs", "workers", "actor_transitions"):
        assert actual[name] == expected[name], name
    assert same_spans(actual["profile_events"]) == same_spans(expected["profile_events"])


@pytest.mark.slow
def test_as_of_the_end_is_the_final_state(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    running = fold_session(tmp_path, None)
    final, at_the_end = tables(tmp_path, running), tables_as_of(tmp_path, running, END.ns)
    assert same_spans(at_the_end.pop("profile_events")) == same_spans(final.pop("profile_events"))
    assert at_the_end == final


@pytest.mark.slow
def test_job_that_has_ended_before_is_not_running(tmp_path: Path) -> None:
    """Every later dashboard response lists the ended job again."""
    ms = 1_794_770_320_000
    done = submitted_job("one", "SUCCEEDED", ms, ms + 2_000)
    put(tmp_path, 0, as_lines([
        jobs_response("2026-11-15T19:18:41Z", submitted_job("one", "RUNNING", ms)),
        jobs_response("2026-11-15T19:18:43Z", done),
        jobs_response("2026-11-15T19:18:50Z", done, submitted_job("two", "RUNNING", ms + 9_000)),
    ]))  # fmt: skip
    manifest = fold_session(tmp_path, None)

    def jobs_as_of(as_of_ms: int) -> list[tuple[Any, ...]]:
        return tables_as_of(tmp_path, manifest, as_of_ms * 1_000_000)["jobs"]

    assert [(row[2], row[8]) for row in jobs_as_of(ms + 5_000)] == [("one", "SUCCEEDED")]
    assert [(row[2], row[8]) for row in jobs_as_of(ms + 1_000)] == [("one", "RUNNING")]


@pytest.mark.slow
def test_states_come_from_the_last_earlier_response(tmp_path: Path) -> None:
    """Tables hold only the latest state of placement groups and submissions."""
    ms = 1_794_770_320_000
    driver = {"job_id": "01000000", "driver_node_id": NODE}
    malformed = {"creation_request_received_ns": "soon"}
    put(tmp_path, 0, as_lines([
        placement_groups_response("2026-11-15T19:18:41Z", "PENDING"),
        jobs_response("2026-11-15T19:18:41Z", submitted_job("one", "PENDING", ms)),
        placement_groups_response("2026-11-15T19:18:43Z", "CREATED", "PENDING", stats=malformed),
        jobs_response("2026-11-15T19:18:43Z", submitted_job("one", "RUNNING", ms) | driver),
        placement_groups_response("2026-11-15T19:18:45Z", "REMOVED", "CREATED"),
        placement_groups_response("2026-11-15T19:18:50Z", "REMOVED", "CREATED"),
        jobs_response("2026-11-15T19:18:50Z", submitted_job("one", "FAILED", ms, ms + 10_000) | driver),
    ]))  # fmt: skip
    manifest = fold_session(tmp_path, None)

    def states_after(seconds: int) -> tuple[list[Any], list[Any]]:
        found = tables_as_of(tmp_path, manifest, (ms + seconds * 1000) * 1_000_000)
        return [row[3] for row in found["placement_groups"]], [(row[8], row[1], row[7]) for row in found["jobs"]]

    assert states_after(0) == ([], [("PENDING", None, None)])
    assert states_after(2) == (["PENDING"], [("PENDING", None, None)])
    assert states_after(4) == (["CREATED", "PENDING"], [("RUNNING", "01000000", NODE)])
    assert states_after(7) == (["REMOVED", "CREATED"], [("RUNNING", "01000000", NODE)])
    assert states_after(11) == (["REMOVED", "CREATED"], [("FAILED", "01000000", NODE)])


def put_event_log(directory: Path, *lines: dict[str, Any]) -> None:
    path = directory / f"{Layout().logs_prefix(REF, NODE)}/events/event_JOBS.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(as_lines(list(lines)))


@pytest.mark.slow
@pytest.mark.parametrize("time", [10**16, 2**61, 10**30, -1, "2026-11-15T19:18:08Z" * 1000])
def test_out_of_range_times_in_responses_are_ignored(tmp_path: Path, time: Any) -> None:
    """Text is not repeated by a multiplication, which would cost memory."""
    worker = "ab" * 28
    listed = {"worker_id": worker, "node_id": NODE, "worker_type": "WORKER", "ip": "", "exit_type": "", "pid": 7}
    node = {"node_id": NODE, "node_ip": "", "node_name": "", "labels": {}, "resources_total": {}, "is_head_node": True}
    bodies = {
        "/api/v0/workers?detail=1": {"data": {"result": {"result": [listed | {"end_time_ms": time}]}}},
        "/api/v0/nodes?detail=1": {"data": {"result": {"result": [node | {"start_time_ms": time}]}}},
        "/api/jobs/": [
            submitted_job("one", "FAILED", time, time),
            {"type": "DRIVER", "job_id": "01000000", "entrypoint": "x", "runtime_env": {}, "metadata": {},
             "start_time": time, "end_time": time},
        ],
    }  # fmt: skip
    responses = [
        {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:18:41Z",
         "dashboardSnapshot": {"uri": uri, "body": body}}
        for uri, body in bodies.items()
    ]  # fmt: skip
    put(tmp_path, 0, as_lines([*responses, lifecycle(workerId=base64.b64encode(bytes.fromhex(worker)).decode())]))
    put_event_log(tmp_path, {"source_type": "JOBS", "timestamp": time, "event_id": "1",
                             "message": "Completed a ray job with a status FAILED.",
                             "custom_fields": {"submission_id": "one"}})  # fmt: skip
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, "SELECT count(*) FROM workers") == [(2,)]
    assert max(len(str(row)) for row in tables(tmp_path, manifest)["nodes"]) < 10_000
    tables_as_of(tmp_path, manifest, 1_794_770_400_000_000_000)


def mangled(rng: random.Random) -> list[dict[str, Any]]:
    """Recorded and skewed events of which some are lost, and others have another time or an error."""
    found = []
    for event in copy.deepcopy(RECORDED + SKEWED):
        if "TASK" not in event["eventType"] or rng.random() < 0.5:
            found.append(event)
            continue
        if rng.random() < 0.4:
            continue
        shift = rng.choice([-3_000_000_000, -1, 1, 1_000_000, 5_000_000_000])
        for timed in [event, *transitions(event)]:
            if rng.random() < 0.5:
                timed["timestamp"] = iso(ns_of(timed) + shift)
        if event["eventType"] == "TASK_LIFECYCLE_EVENT" and rng.random() < 0.3:
            error = {"errorType": "WORKER_DIED", "errorMessage": rng.choice(["one", "two", ""])}
            event["taskLifecycleEvent"] |= {"rayErrorInfo": error, "isDebuggerPaused": rng.random() < 0.5}
        if event["eventType"] == "TASK_DEFINITION_EVENT" and rng.random() < 0.2:
            del event["taskDefinitionEvent"]["jobId"]
        found.append(event)
    return found


def iso(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


@pytest.mark.slow
@settings(LAWS, max_examples=int(os.environ.get("RAYHISTORY_LAWS") or 2))
@given(seed=st.integers(0, 10**6))
def test_rows_of_tasks_as_of_any_time_equal_those_from_cut_events(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Rows are made from the last state and its facts. The index has grown in steps, and the session has ended."""
    directory, rng = tmp_path_factory.mktemp("as-of"), random.Random(seed)
    events = mangled(rng)
    rng.shuffle(events)
    for step in range(2):
        put(directory, step, as_lines(events[step::2]))
        manifest = fold_session(directory, rng.choice([None, END]) if step == 0 else END)
    times = [ns_of(timed) for event in events for timed in (event, *transitions(event))]
    times += [int(span["endTime"]) for event in events for span in spans(event)]
    for time_ns in rng.sample(times, 5):
        shown = build_as_of(directory, manifest, time_ns, ["tasks", "task_list"])
        assert shown["tasks"] == tasks_as_of(directory, manifest, time_ns)
        assert len(shown["task_list"]) == len(shown["tasks"])
