"""Rows of the index in the shape of Ray's State API: the same fields, types and defaults."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from rayhistory.events.profile_spans import read_spans, span_identity
from rayhistory.events.table_columns import TASK_STATES, state_column
from rayhistory.index.manifest import Nanoseconds
from rayhistory.index.query.query import Row
from rayhistory.server.http.responses import strip_ansi
from rayhistory.server.logs.task_log_info import task_log_info
from rayhistory.server.ray_api.state_schema import (
    ACTOR_STATES,
    EXIT_TYPES,
    NIL_TASK,
    NODE_STATES,
    PLACEMENT_GROUP_STATES,
    TASK_TYPES,
    UNKNOWN_MS,
    WORKER_TYPES,
)
from rayhistory.server.untrusted_json import decode_json

_STATE_COLUMNS = tuple((state, state_column(state)) for state in TASK_STATES)
_MAX_TIMESTAMP_S = 253_402_300_799  # the end of the year 9999
_NO_EXTRA_DATA: Row = {}
_RUNTIME_ENV_CONFIG = {"setup_timeout_seconds": 600, "eager_install": True, "log_files": []}

TASK_COLUMNS = (
    "task_id", "attempt_number", "name", "state", "job_id", "actor_id", "type", "func_or_class_name", "parent_task_id",
    "node_id", "worker_id", "worker_pid", "error_type",
)  # fmt: skip

PROFILE_COLUMNS = ("task_id", "attempt", "component_type", "component_id", "node_ip", "spans")


def known_value(value: str | None, values: tuple[str, ...]) -> str:
    """Return the value if it is one of `values`, else the first of them.

    Ray's clients would reject the whole list for a value that they do not know.
    """
    return value if value in values else values[0]


def task(row: Row) -> Row:
    """Return a task without details."""
    shown = {name: row[name] for name in TASK_COLUMNS}
    shown["type"] = known_value(row["type"], TASK_TYPES)
    shown["parent_task_id"] = row["parent_task_id"] or NIL_TASK
    return shown


def task_detail(row: Row, profile: list[Row]) -> Row:
    """Return a task with details. `profile` contains the rows of the table `profile_events` about this task."""
    driver = row["type"] == "DRIVER_TASK"
    return task(row) | {
        "language": row["language"],
        "required_resources": _object(row["required_resources"]),
        "runtime_env_info": _runtime_env_info(row["runtime_env"], driver=driver),
        "placement_group_id": row["placement_group_id"],
        "events": _task_events(row),
        "profiling_data": profiling_data(profile),
        "creation_time_ms": _float(row["creation_time_ms"]),
        "start_time_ms": _float(row["start_time_ms"]),
        "end_time_ms": _float(row["end_time_ms"]),
        "task_log_info": task_log_info(row),
        "error_message": strip_ansi(row["error_message"]) if row["error_message"] else None,
        "is_debugger_paused": row["is_debugger_paused"],
        "call_site": row["call_site"],
        "label_selector": _object(row["label_selector"]),
        "fallback_strategy": decode_json(row["fallback_strategy"], None if driver else {"options": []}),
    }


@lru_cache(maxsize=1024)
def _object(text: str | None) -> dict[str, Any]:
    """Decode a JSON object. It is cached, because thousands of tasks have the same one. Callers must not modify it."""
    decoded: dict[str, Any] = decode_json(text, {})
    return decoded


def _runtime_env_info(serialized: str | None, *, driver: bool) -> Row:
    if driver:
        return {"serialized_runtime_env": serialized or ""}
    return {"serialized_runtime_env": serialized or "{}", "runtime_env_config": _RUNTIME_ENV_CONFIG}


def _task_events(row: Row) -> list[Row]:
    events = [
        {"state": state, "created_ms": float(row[column] // 1_000_000)}
        for state, column in _STATE_COLUMNS
        if row[column] is not None
    ]
    if row["closed_ns"] is not None:
        events.append({"state": row["state"], "created_ms": float(row["closed_ns"] // 1_000_000)})
    return events


class _Span(msgspec.Struct, rename="camel", gc=False):
    """The fields of a profile span. Spans of another shape are decoded more slowly, without this type."""

    event_name: str
    start_time: Nanoseconds
    end_time: Nanoseconds
    extra_data: str = ""


class _ProfileEvent(msgspec.Struct, gc=False):
    start_time: float
    end_time: float
    extra_data: Any
    event_name: str


_SPANS = msgspec.json.Decoder(list[_Span], strict=False)


def profiling_data(profile: list[Row]) -> Row:
    with_spans = [(row, spans) for row in profile if (spans := _spans(row))]
    if not with_spans:
        return {}
    last, spans = with_spans[0] if len(with_spans) == 1 else max(with_spans, key=lambda pair: max(map(_end, pair[1])))
    if len(with_spans) > 1:
        spans = list({_identity(span): span for _, more in with_spans for span in more}.values())
    spans.sort(key=_end)
    return {
        "component_type": last["component_type"] or "",
        "component_id": last["component_id"] or "",
        "node_ip_address": last["node_ip"] or "",
        "events": [
            _ProfileEvent(span.start_time / 1e6, span.end_time / 1e6, extra_data(span.extra_data), span.event_name)
            for span in spans
        ],
    }


def _identity(span: _Span) -> tuple[str, float, float]:
    return span_identity(span.event_name, span.start_time, span.end_time)


def _end(span: _Span) -> tuple[int, int]:
    return span.end_time, span.start_time


def _spans(row: Row) -> list[_Span]:
    try:
        return _SPANS.decode(row["spans"])
    except (msgspec.DecodeError, RecursionError):
        spans = read_spans(row)
        return [_Span(span["event_name"], span["start_ns"], span["end_ns"], span["extra_data"]) for span in spans]


def extra_data(text: Any) -> Row:
    """Decode the data that a program attached to a span. It may be any text."""
    if text == "{}" or not isinstance(text, str):
        return _NO_EXTRA_DATA
    extra: Row = decode_json(text, _NO_EXTRA_DATA)
    return extra


def by_attempt(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Group profiles or spans by task attempt."""
    grouped: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["task_id"], row["attempt"]), []).append(row)
    return grouped


def actor(row: Row) -> Row:
    return {
        "actor_id": row["actor_id"],
        "class_name": row["class_name"] or "",
        "state": known_value(row["state"], ACTOR_STATES),
        "job_id": row["job_id"],
        "name": row["name"] or "",
        "node_id": row["node_id"],
        "pid": row["pid"] or 0,
        "ray_namespace": row["ray_namespace"] or "",
        "serialized_runtime_env": row["runtime_env"] or "{}",
        "required_resources": decode_json(row["required_resources"], {}),
        "death_cause": decode_json(row["death_cause"], None),
        "is_detached": row["is_detached"],
        "placement_group_id": row["placement_group_id"],
        "repr_name": row["repr_name"] or "",
        "num_restarts": str(row["num_restarts"]),
        "num_restarts_due_to_lineage_reconstruction": str(row["lineage_restarts"]),
        "num_restarts_due_to_node_preemption": str(row["preemption_restarts"]),
        "call_site": row["call_site"],
        "label_selector": decode_json(row["label_selector"], {}),
        "fallback_strategy": decode_json(row["fallback_strategy"], None),
    }


def node(row: Row) -> Row:
    return {
        "node_id": row["node_id"],
        "node_ip": row["node_ip"] or "",
        "is_head_node": row["is_head"],
        "state": known_value(row["state"], NODE_STATES),
        "state_message": row["state_message"],
        "node_name": row["node_name"] or "",
        "resources_total": decode_json(row["resources"], {}),
        "labels": decode_json(row["labels"], {}),
        "start_time_ms": row["start_time_ms"] or 0,
        "end_time_ms": row["end_time_ms"] or 0,
    }


def worker(row: Row) -> Row:
    return {
        "worker_id": row["worker_id"],
        "is_alive": row["is_alive"],
        "worker_type": known_value(row["worker_type"], WORKER_TYPES),
        "exit_type": known_value(row["exit_type"], EXIT_TYPES) if row["exit_type"] else None,
        "node_id": row["node_id"] or "",
        "ip": row["ip"] or "",
        "pid": row["pid"] or 0,
        "exit_detail": row["exit_detail"],
        "worker_launch_time_ms": row["launch_ms"] or UNKNOWN_MS,
        "worker_launched_time_ms": row["launched_ms"] or UNKNOWN_MS,
        "start_time_ms": row["start_time_ms"] or 0,
        "end_time_ms": row["end_time_ms"] or 0,
        "debugger_port": None,
        "num_paused_threads": None,
    }


def placement_group(row: Row) -> Row:
    return {
        "placement_group_id": row["placement_group_id"],
        "name": row["name"] or "",
        "creator_job_id": row["creator_job_id"] or "",
        "state": known_value(row["state"], PLACEMENT_GROUP_STATES),
        "bundles": decode_json(row["bundles"], []),
        "is_detached": row["is_detached"],
        "stats": decode_json(row["stats"], {}),
        "topology_strategy": decode_json(row["topology_strategy"], {}),
        "topology_assignments": decode_json(row["topology_assignments"], {}),
    }


def cluster_event(row: Row) -> Row:
    return {
        "severity": row["severity"] or "",
        "time": _time(row["timestamp_s"] or 0),
        "source_type": row["source_type"] or "",
        "message": row["message"] or "",
        "event_id": row["event_id"],
        "custom_fields": decode_json(row["custom_fields"], {}),
    }


def _time(seconds: int) -> str:
    """Format a timestamp, clamped to the years that a datetime can represent."""
    return datetime.fromtimestamp(min(max(seconds, 0), _MAX_TIMESTAMP_S), UTC).strftime("%Y-%m-%d %H:%M:%S")


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
