"""Events and dashboard responses for tests of the fold, made from recorded ones."""

import json
from typing import Any

from rayhistory.events.times import parse_ns
from support.folding import RECORDED


def ns_of(event: dict[str, Any]) -> int:
    """The time of an event, or of a state transition."""
    return parse_ns(event["timestamp"]) or 0


def lifecycle(**changes: Any) -> dict[str, Any]:
    """An event about the first recorded task."""
    event: dict[str, Any] = next(
        json.loads(json.dumps(event)) for event in RECORDED if event["eventType"] == "TASK_LIFECYCLE_EVENT"
    )
    event["taskLifecycleEvent"] |= changes
    return event


def first_ns(event: dict[str, Any]) -> int:
    """The earliest time in an event."""
    times = [ns_of(event)] if "Definition" in json.dumps(list(event)) else []
    times += [ns_of(change) for change in transitions(event)]
    times += [int(span["endTime"]) for span in spans(event)]
    return min(times, default=ns_of(event))


def nested(event: dict[str, Any]) -> dict[str, Any]:
    return next((value for value in event.values() if isinstance(value, dict)), {})


def transitions(event: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nested(event).get("stateTransitions", [])
    return found


def spans(event: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nested(event).get("profileEvents", {}).get("events", [])
    return found


def cut_event(event: dict[str, Any], as_of_ns: int) -> dict[str, Any]:
    """The event as Ray would have sent it at a point in time."""
    event = json.loads(json.dumps(event))
    inner = nested(event)
    if "stateTransitions" in inner:
        inner["stateTransitions"] = [t for t in inner["stateTransitions"] if ns_of(t) <= as_of_ns]
        reached = {t["state"] for t in inner["stateTransitions"]}
        if not reached & {"FAILED"}:
            inner.pop("rayErrorInfo", None)
        if not reached & {"SUBMITTED_TO_WORKER", "RUNNING"} and "workerPid" in inner:
            inner["nodeId"] = inner["workerId"] = ""
    if span_holder := inner.get("profileEvents"):
        span_holder["events"] = [span for span in span_holder["events"] if int(span["endTime"]) <= as_of_ns]
    return event


PLACEMENT_GROUPS_URI = "/api/v0/placement_groups?detail=1&limit=10000"


def jobs_response(at: str, *jobs: dict[str, Any]) -> dict[str, Any]:
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": at,
        "dashboardSnapshot": {"uri": "/api/jobs/", "body": jobs},
    }


def submitted_job(name: str, status: str, start_ms: int, end_ms: int | None = None) -> dict[str, Any]:
    return {"type": "SUBMISSION", "submission_id": name, "job_id": None, "entrypoint": "x", "runtime_env": {},
            "metadata": {}, "status": status, "message": None, "error_type": None, "start_time": start_ms,
            "end_time": end_ms}  # fmt: skip


def placement_groups_response(at: str, *states: str, **more: Any) -> dict[str, Any]:
    groups = [
        {"placement_group_id": f"{number:036x}", "name": "", "creator_job_id": "01000000", "state": state, **more}
        for number, state in enumerate(states)
    ]
    body = {"data": {"result": {"result": groups}}}
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": at,
        "dashboardSnapshot": {"uri": PLACEMENT_GROUPS_URI, "body": body},
    }
