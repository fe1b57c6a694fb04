"""A moment knows what was told by then, and nothing that came later."""

import copy
from pathlib import Path
from typing import Any

import pytest

from folding import RECORDED, as_lines, fold_session, put, tables, tables_as_of
from rayhistory.events.times import parse_ns


def at(second: int) -> str:
    return f"2026-11-15T19:19:{second:02}Z"


def ns(second: int) -> int:
    found = parse_ns(at(second))
    assert found
    return found


def lifecycle(second: int, **told: Any) -> dict[str, Any]:
    """An event about always the same attempt."""
    event = copy.deepcopy(next(event for event in RECORDED if event["eventType"] == "TASK_LIFECYCLE_EVENT"))
    event["taskLifecycleEvent"] |= {"stateTransitions": []} | told
    return event | {"eventId": f"at {second}", "timestamp": at(second)}


RUNNING = lifecycle(10, stateTransitions=[{"state": "RUNNING", "timestamp": at(10)}])


@pytest.mark.parametrize("second", [15, 25, 35])
def test_whether_the_debugger_holds_a_task_is_known_at_each_moment(tmp_path: Path, second: int) -> None:
    """And is no more true when it was let go."""
    events = [RUNNING, lifecycle(20, isDebuggerPaused=True), lifecycle(30, isDebuggerPaused=False)]
    earlier = [event for event in events if (parse_ns(event["timestamp"]) or 0) <= ns(second)]
    put(tmp_path / "all", 0, as_lines(events))
    put(tmp_path / "earlier", 0, as_lines(earlier))
    told = "state, is_debugger_paused"
    shown = tables_as_of(tmp_path / "all", fold_session(tmp_path / "all", None), ns(second), told)["tasks"]
    assert shown == tables(tmp_path / "earlier", fold_session(tmp_path / "earlier", None), told)["tasks"]
    assert shown == [("RUNNING", {15: None, 25: True, 35: False}[second])]


def test_a_driver_of_which_only_the_definition_was_told_is_there_from_then_on(tmp_path: Path) -> None:
    """Its lifecycle event may be lost; it is no reason to hide it."""
    definition = next(event for event in RECORDED if event["eventType"] == "DRIVER_JOB_DEFINITION_EVENT")
    put(tmp_path, 0, as_lines([definition | {"timestamp": at(10)}, RUNNING | {"timestamp": at(50)}]))
    manifest = fold_session(tmp_path, None)
    last = [row[:3] for row in tables(tmp_path, manifest)["jobs"]]
    assert len(last) == 1
    assert [row[:3] for row in tables_as_of(tmp_path, manifest, ns(11))["jobs"]] == last
    assert tables_as_of(tmp_path, manifest, ns(9))["jobs"] == []


def test_of_an_attempt_that_failed_twice_a_moment_between_shows_no_error(tmp_path: Path) -> None:
    """Only the last error is kept: an earlier moment must not show it, and does not know the one before."""
    first, second = ({"state": "FAILED", "timestamp": at(when)} for when in (20, 30))
    events = [
        lifecycle(20, stateTransitions=[first], rayErrorInfo={"errorType": "WORKER_DIED", "errorMessage": "one"}),
        lifecycle(30, stateTransitions=[second], rayErrorInfo={"errorType": "NODE_DIED", "errorMessage": "two"}),
    ]
    put(tmp_path, 0, as_lines(events))
    manifest = fold_session(tmp_path, None)
    told = "state, error_type, error_message"
    assert tables_as_of(tmp_path, manifest, ns(25), told)["tasks"] == [("FAILED", None, None)]
    assert tables_as_of(tmp_path, manifest, ns(30), told)["tasks"] == [("FAILED", "NODE_DIED", "two")]
