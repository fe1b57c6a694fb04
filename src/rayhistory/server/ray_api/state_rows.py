"""Rows of the index in the shape of Ray's State API: the same fields, types and ways to say "nothing"."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from rayhistory.events.spans import read_spans
from rayhistory.events.tables import TASK_STATES, state_column
from rayhistory.index.manifest import Nanoseconds
from rayhistory.index.query import Row
from rayhistory.server.answers import parsed, without_ansi
from rayhistory.server.state_schema import (
    ACTOR_STATES,
    EXIT_TYPES,
    NIL_TASK,
    NODE_STATES,
    PLACEMENT_GROUP_STATES,
    TASK_TYPES,
    UNKNOWN_MS,
    WORKER_TYPES,
)

_STATE_COLUMNS = tuple((state, state_column(state)) for state in TASK_STATES)
_LOG_FIELDS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")
_LAST_SECOND = 253_402_300_799  # of the year 9999
_NOTHING: Row = {}
_RUNTIME_ENV_CONFIG = {"setup_timeout_seconds": 600, "eager_install": True, "log_files": []}

TASK_COLUMNS = (
    "task_id", "attempt_number", "name", "state", "job_id", "actor_id", "type", "func_or_class_name", "parent_task_id",
    "node_id", "worker_id", "worker_pid", "error_type",
)  # fmt: skip

PROFILE_COLUMNS = ("task_id", "attempt", "component_type", "component_id", "node_ip", "spans")


def known(word: str | None, words: tuple[str, ...]) -> str:
    """The word, if Ray's clients know it: they refuse a whole list for one that they do not."""
    return word if word in words else words[0]


def task(row: Row) -> Row:
    """A task as lists without detail show it."""
    shown = {name: row[name] for name in TASK_COLUMNS}
    shown["type"] = known(row["type"], TASK_TYPES)
    shown["parent_task_id"] = row["parent_task_id"] or NIL_TASK
    return shown


def task_detail(row: Row, profile: list[Row]) -> Row:
    """A task with its details; `profile` are the rows about what was measured in it."""
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
        "error_message": without_ansi(row["error_message"]) if row["error_message"] else None,
        "is_debugger_paused": row["is_debugger_paused"],
        "call_site": row["call_site"],
        "label_selector": _object(row["label_selector"]),
        "fallback_strategy": parsed(row["fallback_strategy"], None if driver else {"options": []}),
    }


@lru_cache(maxsize=1024)
def _object(text: str | None) -> dict[str, Any]:
    """JSON that thousands of tasks have in common; what is made of it is only ever written out."""
    found: dict[str, Any] = parsed(text, {})
    return found


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
        events.append({"state": "FAILED", "created_ms": float(row["closed_ns"] // 1_000_000)})
    return events


def task_log_info(row: Row) -> Row | None:
    """Where a task's output is: the fields that are known; None when no file is."""
    if row["stdout_file"] is None and row["stderr_file"] is None:
        return None
    return {name: row[name] for name in _LOG_FIELDS if row[name] is not None}


class _Span(msgspec.Struct, rename="camel", gc=False):
    """A span as almost all are."""

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
    told = [(row, spans) for row in profile if (spans := _spans(row))]
    if not told:
        return {}
    first, spans = told[0] if len(told) == 1 else min(told, key=lambda one: min(map(_ended, one[1])))
    if len(told) > 1:
        spans = [span for _, more in told for span in more]
    spans.sort(key=_ended)
    return {
        "component_type": first["component_type"] or "",
        "component_id": first["component_id"] or "",
        "node_ip_address": first["node_ip"] or "",
        "events": [
            _ProfileEvent(span.start_time / 1e6, span.end_time / 1e6, extra_data(span.extra_data), span.event_name)
            for span in spans
        ],
    }


def _ended(span: _Span) -> tuple[int, int]:
    return span.end_time, span.start_time


def _spans(row: Row) -> list[_Span]:
    try:
        return _SPANS.decode(row["spans"])
    except (msgspec.DecodeError, RecursionError):
        found = read_spans(row)
        return [_Span(one["event_name"], one["start_ns"], one["end_ns"], one["extra_data"]) for one in found]


def extra_data(text: Any) -> Row:
    """What the program added to a span; it may be anything."""
    if text == "{}" or not isinstance(text, str):
        return _NOTHING
    extra: Row = parsed(text, _NOTHING)
    return extra


def by_attempt(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Profiles, or spans of them, by the attempt that they are of."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["task_id"], row["attempt"]), []).append(row)
    return found


def actor(row: Row) -> Row:
    return {
        "actor_id": row["actor_id"],
        "class_name": row["class_name"] or "",
        "state": known(row["state"], ACTOR_STATES),
        "job_id": row["job_id"],
        "name": row["name"] or "",
        "node_id": row["node_id"],
        "pid": row["pid"] or 0,
        "ray_namespace": row["ray_namespace"] or "",
        "serialized_runtime_env": row["runtime_env"] or "{}",
        "required_resources": parsed(row["required_resources"], {}),
        "death_cause": parsed(row["death_cause"], None),
        "is_detached": row["is_detached"],
        "placement_group_id": row["placement_group_id"],
        "repr_name": row["repr_name"] or "",
        "num_restarts": str(row["num_restarts"]),
        "num_restarts_due_to_lineage_reconstruction": str(row["lineage_restarts"]),
        "num_restarts_due_to_node_preemption": str(row["preemption_restarts"]),
        "call_site": row["call_site"],
        "label_selector": parsed(row["label_selector"], {}),
        "fallback_strategy": parsed(row["fallback_strategy"], None),
    }


def node(row: Row) -> Row:
    return {
        "node_id": row["node_id"],
        "node_ip": row["node_ip"] or "",
        "is_head_node": row["is_head"],
        "state": known(row["state"], NODE_STATES),
        "state_message": row["state_message"],
        "node_name": row["node_name"] or "",
        "resources_total": parsed(row["resources"], {}),
        "labels": parsed(row["labels"], {}),
        "start_time_ms": row["start_time_ms"] or 0,
        "end_time_ms": row["end_time_ms"] or 0,
    }


def worker(row: Row) -> Row:
    return {
        "worker_id": row["worker_id"],
        "is_alive": row["is_alive"],
        "worker_type": known(row["worker_type"], WORKER_TYPES),
        "exit_type": known(row["exit_type"], EXIT_TYPES) if row["exit_type"] else None,
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
        "state": known(row["state"], PLACEMENT_GROUP_STATES),
        "bundles": parsed(row["bundles"], []),
        "is_detached": row["is_detached"],
        "stats": parsed(row["stats"], {}),
        "topology_strategy": parsed(row["topology_strategy"], {}),
        "topology_assignments": parsed(row["topology_assignments"], {}),
    }


def cluster_event(row: Row) -> Row:
    return {
        "severity": row["severity"] or "",
        "time": _time(row["timestamp_s"] or 0),
        "source_type": row["source_type"] or "",
        "message": row["message"] or "",
        "event_id": row["event_id"],
        "custom_fields": parsed(row["custom_fields"], {}),
    }


def _time(seconds: int) -> str:
    """The nearest that a calendar has."""
    return datetime.fromtimestamp(min(max(seconds, 0), _LAST_SECOND), UTC).strftime("%Y-%m-%d %H:%M:%S")


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
