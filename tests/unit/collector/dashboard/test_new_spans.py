"""Each list of tasks is reduced to the spans that earlier lists did not have."""

import json
from typing import Any

from rayhistory.collector.dashboard.new_spans import NewSpans

TASK, OTHER = "aa" * 24, "bb" * 24


def span(name: str, end: float = 2.5) -> dict[str, Any]:
    return {"event_name": name, "start_time": 1.25, "end_time": end, "extra_data": {"name": name}}


def task_list(**spans: list[dict[str, Any]]) -> bytes:
    """Return Ray's response; each task has fields that are not stored."""
    rows = [
        {
            "task_id": task,
            "attempt_number": 0,
            "job_id": "01000000",
            "name": "load",
            "profiling_data": {"component_type": "worker", "component_id": "cc" * 28, "events": events}
            if events
            else {},
        }
        for task, events in spans.items()
    ]
    return json.dumps({"result": True, "data": {"result": {"total": len(rows), "result": rows}}}).encode()


def names(found: bytes | None) -> dict[str, list[str]]:
    rows = json.loads(found or b"{}").get("data", {}).get("result", {}).get("result", [])
    return {row["task_id"]: [event["event_name"] for event in row["profiling_data"]["events"]] for row in rows}


def test_only_tasks_with_spans_are_listed_and_only_what_identifies_them() -> None:
    found = NewSpans().find(task_list(**{TASK: [span("task:execute")], OTHER: []}))
    profile = {"component_type": "worker", "component_id": "cc" * 28, "events": [span("task:execute")]}
    row = {"task_id": TASK, "attempt_number": 0, "job_id": "01000000", "profiling_data": profile}
    assert json.loads(found or b"") == {"data": {"result": {"result": [row]}}}


def test_stored_spans_are_not_listed_again() -> None:
    spans = NewSpans()
    first = task_list(**{TASK: [span("task:execute")], OTHER: [span("submit_task")]})
    assert names(spans.find(first)) == {TASK: ["task:execute"], OTHER: ["submit_task"]}
    spans.confirm()
    assert spans.find(first) is None
    grown = task_list(**{TASK: [span("task:execute")], OTHER: [span("submit_task"), span("submit_task", 3.5)]})
    assert names(spans.find(grown)) == {OTHER: ["submit_task"]}


def test_spans_are_listed_again_if_they_could_not_be_stored() -> None:
    spans = NewSpans()
    body = task_list(**{TASK: [span("task:execute")]})
    assert spans.find(body) == spans.find(body) is not None


def test_response_of_another_shape_has_no_spans() -> None:
    for body in (b"", b"[]", b'{"data": null}', b'{"data": {"result": {"result": [{"task_id": 1}]}}}', b"\xff"):
        assert NewSpans().find(body) is None
