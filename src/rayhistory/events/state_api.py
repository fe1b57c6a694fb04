"""Rows of the dashboard's State API lists, for sessions and drivers without events.

If there is a collector, these lists are stored but not read, because events are more exact. There are two exceptions:
failed tasks, which the collector polls while a driver does not export events, and spans, which old versions do not
export.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from rayhistory.events.dashboard_responses import add_dashboard_rows, as_json, as_text, listed
from rayhistory.events.export_files import log_columns, pause_columns, place_columns
from rayhistory.events.row_buffer import MALFORMED_ERRORS, Anomaly, RowBuffer
from rayhistory.events.table_columns import TASK_STATES, state_column
from rayhistory.events.times import ms_to_ns
from rayhistory.gaps import GapCode

_MAX_RESTARTS = 10_000
_UNKNOWN_TIME_NS = 1_000_000
"""The time of a state if the dashboard lists none: the smallest valid time in milliseconds."""


def add_state_rows(rows: RowBuffer, uri: str, body: object, ns: int) -> Anomaly | None:
    """Add all rows of a response. Return an anomaly if the list is incomplete."""
    path = uri.partition("?")[0].rstrip("/")
    anomaly = add_dashboard_rows(rows, uri, body, ns)
    try:
        if reader := _READERS.get(path):
            reader(rows, body, ns)
        return anomaly or (_incompleteness(path, body) if path.startswith("/api/v0/") else None)
    except MALFORMED_ERRORS as error:
        return GapCode.DASHBOARD_RESPONSE_UNEXPECTED, f"{uri}: {error!r}"


def add_span_rows(rows: RowBuffer, uri: str, body: object, ns: int) -> Anomaly | None:
    """Add only the profile spans of a list of tasks."""
    try:
        for task in listed(body):
            _add_spans(rows, task)
    except MALFORMED_ERRORS as error:
        return GapCode.DASHBOARD_RESPONSE_UNEXPECTED, f"{uri}: {error!r}"
    return None


def is_truncated(body: Any) -> bool:
    """Return True if the cluster has more entries than the dashboard lists at once."""
    result = body["data"]["result"]
    return _missing_entries(result) > 0


def _incompleteness(path: str, body: Any) -> Anomaly | None:
    result = body.get("data", {}).get("result") if isinstance(body, dict) else None
    if not isinstance(result, dict) or not isinstance(result.get("result"), list):
        return None
    if missing := _missing_entries(result):
        return GapCode.DASHBOARD_LIST_TRUNCATED, f"{path}: {len(result['result'])} listed, {missing} missing"
    if warning := result.get("partial_failure_warning"):
        return GapCode.DASHBOARD_LIST_INCOMPLETE, f"{path}: {warning}"
    return None


def _missing_entries(result: dict[str, Any]) -> int:
    truncated = (result.get("total") or 0) - (result.get("num_after_truncation") or 0)
    return max(0, truncated, (result.get("num_filtered") or 0) - len(result["result"]))


def _add_tasks(rows: RowBuffer, body: Any, ns: int) -> None:
    for task in listed(body):
        key = _key(task)
        times = _state_times(task)
        environment = (task.get("runtime_env_info") or {}).get("serialized_runtime_env")
        fallback = task.get("fallback_strategy") or {}
        rows.add(
            "task_definitions",
            **key,
            type=as_text(task.get("type")),
            name=as_text(task.get("name")),
            func_or_class_name=as_text(task.get("func_or_class_name")),
            language=as_text(task.get("language")),
            parent_task_id=as_text(task.get("parent_task_id")),
            actor_id=as_text(task.get("actor_id")),
            placement_group_id=as_text(task.get("placement_group_id")),
            required_resources=as_json(task.get("required_resources")),
            label_selector=as_json(task.get("label_selector")),
            fallback_strategy=as_json(fallback) if fallback.get("options") else None,
            runtime_env=as_text(environment),
            call_site=as_text(task.get("call_site")),
            defined_ns=next((times[state] for state in TASK_STATES if times.get(state)), ns),
        )
        has_failed = task.get("error_type") or task.get("error_message")
        rows.add(
            "task_updates",
            **key,
            **place_columns(
                as_text(task.get("node_id")), as_text(task.get("worker_id")), task.get("worker_pid"), times, ns
            ),
            **pause_columns(task.get("is_debugger_paused"), ns),
            **log_columns(task.get("task_log_info") or {}),
            error_ns=(times.get("FAILED") or ns) if has_failed else None,
            error_type=as_text(task.get("error_type")),
            error_message=as_text(task.get("error_message")),
            **{state_column(state): times.get(state) for state in TASK_STATES},
        )
        _add_spans(rows, task)


def _key(task: dict[str, Any]) -> dict[str, Any]:
    return {"task_id": task["task_id"], "attempt": task["attempt_number"], "job_id": as_text(task["job_id"])}


def _add_spans(rows: RowBuffer, task: dict[str, Any]) -> None:
    profile = task.get("profiling_data") or {}
    if spans := _spans(profile):
        rows.add(
            "profile_events",
            **_key(task),
            component_type=as_text(profile.get("component_type")),
            component_id=as_text(profile.get("component_id")),
            node_ip=as_text(profile.get("node_ip_address")),
            spans=spans,
        )


def _state_times(task: dict[str, Any]) -> dict[str, int]:
    """Return the time when the task reached each state. Its current state always has a time."""
    times = {each["state"]: _ns(each["created_ms"]) for each in task.get("events") or []}
    state = task.get("state")
    if state in TASK_STATES and state not in times:
        candidates = map(task.get, ("end_time_ms", "start_time_ms", "creation_time_ms"))
        times[state] = next(filter(None, map(ms_to_ns, candidates)), _UNKNOWN_TIME_NS)
    return times


def _ns(ms: float) -> int:
    """Convert milliseconds. Whole milliseconds are converted exactly, because a float is too coarse for nanoseconds."""
    return int(ms) * 1_000_000 + round((ms - int(ms)) * 1_000_000)


def _spans(profile: dict[str, Any]) -> str | None:
    return as_json(
        [
            {
                "eventName": span["event_name"],
                "startTime": str(_ns(span["start_time"])),
                "endTime": str(_ns(span["end_time"])),
                "extraData": msgspec.json.encode(span.get("extra_data") or {}).decode(),
            }
            for span in profile.get("events") or []
        ]
    )


def _add_dashboard_actors(rows: RowBuffer, body: Any, ns: int) -> None:
    """Add the node and the times of each actor.

    The dashboard lists only the number of restarts of an actor. They happened before the listed start.
    """
    for actor in body["data"]["actors"].values():
        state, address = actor["state"], actor.get("address") or {}
        columns = {
            "actor_id": actor["actorId"],
            "node_id": as_text(address.get("nodeId")),
            "worker_id": as_text(address.get("workerId")),
            "pid": actor.get("pid") or None,
            "port": address.get("port") or None,
            "repr_name": as_text(actor.get("reprName")),
            "restart_reason": None,
            "death_cause": None,
            "reported_by": "dashboard",
        }
        started, ended = ms_to_ns(actor.get("startTime")), ms_to_ns(actor.get("endTime"))
        if started:
            rows.add("actor_transitions", **columns, ns=started, state="ALIVE")
        for number in range(min(int(actor.get("numRestarts") or 0), _MAX_RESTARTS)):
            rows.add("actor_transitions", **columns, ns=(started or ns) - 1 - number, state="RESTARTING")
        if state != "ALIVE":
            at = ended if state == "DEAD" and ended else ns
            rows.add("actor_transitions", **columns, ns=at, state=state)


def _add_actors(rows: RowBuffer, body: Any, ns: int) -> None:
    for actor in listed(body):
        rows.add(
            "actor_definitions",
            actor_id=actor["actor_id"],
            job_id=as_text(actor["job_id"]),
            name=as_text(actor.get("name")),
            ray_namespace=as_text(actor.get("ray_namespace")),
            class_name=as_text(actor.get("class_name")),
            placement_group_id=as_text(actor.get("placement_group_id")),
            runtime_env=as_text(actor.get("serialized_runtime_env")),
            call_site=as_text(actor.get("call_site")),
            is_detached=actor.get("is_detached"),
            required_resources=as_json(actor.get("required_resources")),
            label_selector=as_json(actor.get("label_selector")),
            fallback_strategy=as_json(actor.get("fallback_strategy")),
            defined_ns=ns,
        )
        if actor["state"] == "DEAD":
            rows.add(
                "actor_transitions",
                actor_id=actor["actor_id"],
                ns=ns,
                state="DEAD",
                node_id=None,
                worker_id=None,
                pid=None,
                port=None,
                repr_name=None,
                restart_reason=None,
                death_cause=as_json(actor.get("death_cause")),
                reported_by="dashboard",
            )


def _add_nodes(rows: RowBuffer, body: Any, ns: int) -> None:
    for node in listed(body):
        columns = {"node_id": node["node_id"], "sub_state": None, "death_reason": None}
        started, ended = ms_to_ns(node.get("start_time_ms")), ms_to_ns(node.get("end_time_ms"))
        if started:
            rows.add("node_transitions", **columns, ns=started, state="ALIVE", death_message=None)
        if node["state"] == "DEAD":
            message = as_text(node.get("state_message"))
            rows.add("node_transitions", **columns, ns=ended or ns, state="DEAD", death_message=message)


def _add_submitted_drivers(rows: RowBuffer, body: Any, ns: int) -> None:
    """Add the drivers of submitted jobs. `add_dashboard_rows` has added all other drivers."""
    for job in body:
        driver = job.get("driver_info") or {}
        if job["type"] == "SUBMISSION" and job.get("job_id"):
            rows.add(
                "driver_jobs",
                job_id=job["job_id"],
                driver_node_id=as_text(job.get("driver_node_id")),
                submission_id=job["submission_id"],
                driver_pid=int(driver["pid"]) if driver.get("pid") else None,
                finished_ns=ms_to_ns(job.get("end_time")),
                seen_ns=ms_to_ns(job.get("start_time")) or ns,
            )


_READERS: dict[str, Callable[[RowBuffer, Any, int], None]] = {
    "/api/jobs": _add_submitted_drivers,
    "/api/v0/tasks": _add_tasks,
    "/api/v0/actors": _add_actors,
    "/logical/actors": _add_dashboard_actors,
    "/api/v0/nodes": _add_nodes,
}
