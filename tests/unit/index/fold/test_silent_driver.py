"""Tasks of a driver that did not export events: their ends and errors come from the workers and the dashboard."""

import base64
from pathlib import Path
from typing import Any

from rayhistory.events.dashboard_responses import FAILED_TASKS_URI
from rayhistory.gaps import GapCode
from support.folding import as_lines, fold_session, put, rows

JOB = "02000000"
AT = "2026-11-15T19:18:20.{:09}Z"
NS = 1_794_770_300_000_000_000


def task_id(number: int) -> str:
    return f"{number:016x}{'f' * 24}{JOB}"


def b64(hex_id: str) -> str:
    return base64.b64encode(bytes.fromhex(hex_id)).decode()


def runs(number: int) -> dict[str, Any]:
    return {
        "eventType": "TASK_LIFECYCLE_EVENT",
        "timestamp": AT.format(0),
        "taskLifecycleEvent": {
            "taskId": b64(task_id(number)), "jobId": b64(JOB), "taskAttempt": 0, "workerPid": 7,
            "stateTransitions": [{"state": "RUNNING", "timestamp": AT.format(0)}],
        },
    }  # fmt: skip


def profile(number: int, *spans: tuple[str, str]) -> dict[str, Any]:
    events = [
        {"eventName": name, "startTime": str(NS), "endTime": str(NS + 5), "extraData": extra} for name, extra in spans
    ]
    return {
        "eventType": "TASK_PROFILE_EVENT",
        "timestamp": AT.format(0),
        "taskProfileEvents": {
            "taskId": b64(task_id(number)), "attemptNumber": 0, "jobId": b64(JOB),
            "profileEvents": {"componentType": "worker", "events": events},
        },
    }  # fmt: skip


JOB_ENDED = {
    "eventType": "DRIVER_JOB_LIFECYCLE_EVENT",
    "timestamp": AT.format(9),
    "driverJobLifecycleEvent": {
        "jobId": b64(JOB), "stateTransitions": [{"state": "FINISHED", "timestamp": AT.format(9)}]
    },
}  # fmt: skip


def served(directory: Path, *events: dict[str, Any]) -> list[tuple[Any, ...]]:
    put(directory, 0, as_lines([*events, JOB_ENDED]))
    return rows(
        directory,
        fold_session(directory),
        "SELECT name, state, error_type, error_message, closed_by_history FROM tasks ORDER BY task_id",
    )


def test_exception_comes_from_the_worker(tmp_path: Path) -> None:
    """Ray's worker writes it into the span of the execution."""
    raised = '{"type": "ValueError", "value": "bad", "traceback": "Traceback: bad"}'
    spans = ("task:execute", raised), ("task::load", "{}")
    assert served(tmp_path, runs(1), profile(1, *spans)) == [
        ("load", "FAILED", "TASK_EXECUTION_EXCEPTION", "Traceback: bad", False)
    ]


def test_task_that_stored_its_outputs_has_finished(tmp_path: Path) -> None:
    spans = ("task:execute", "{}"), ("task:store_outputs", "not JSON"), ("task::load", "{}")
    assert served(tmp_path, runs(1), profile(1, *spans)) == [("load", "FINISHED", None, None, False)]


def test_job_end_is_not_the_cause_of_an_unknown_end(tmp_path: Path) -> None:
    ((_, state, error_type, message, inferred),) = served(tmp_path, runs(1))
    assert (state, error_type, inferred) == ("FAILED", None, True)
    assert "driver did not export events" in message
    assert "Job finishes" not in message


def test_name_and_error_come_from_the_dashboards_list_of_failed_tasks(tmp_path: Path) -> None:
    task = {
        "task_id": task_id(1), "attempt_number": 0, "job_id": JOB, "name": "load", "func_or_class_name": "load",
        "type": "NORMAL_TASK", "state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION", "error_message": "bad",
        "events": [{"state": "FAILED", "created_ms": NS / 1e6}],
    }  # fmt: skip
    listed = {"total": 1, "num_after_truncation": 1, "num_filtered": 1, "result": [task]}
    response = {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": AT.format(9),
        "dashboardSnapshot": {"uri": FAILED_TASKS_URI, "body": {"data": {"result": listed}}},
    }
    assert served(tmp_path, runs(1), response) == [("load", "FAILED", "TASK_EXECUTION_EXCEPTION", "bad", False)]


def test_gap_counts_tasks_without_definition_and_not_as_running_at_the_end(tmp_path: Path) -> None:
    put(tmp_path, 0, as_lines([runs(1), JOB_ENDED]))
    gaps = dict(rows(tmp_path, fold_session(tmp_path), "SELECT kind, count FROM gaps"))
    assert gaps[GapCode.TASK_WITHOUT_DEFINITION] == 1
    assert GapCode.TASK_OPEN_AT_SESSION_END not in gaps
