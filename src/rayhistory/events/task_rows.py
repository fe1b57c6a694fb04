"""Rows of task events, made many at a time and by column, because a session can have millions."""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import cast

from rayhistory import ids
from rayhistory.events import event_types
from rayhistory.events.profile_spans import camel_spans
from rayhistory.events.row_buffer import Anomaly, RowBuffer, to_json_texts
from rayhistory.gaps import GapCode

Columns = dict[str, Sequence[object]]

_DEFINITION = attrgetter(
    "task_id", "task_attempt", "job_id", "task_type", "language", "parent_task_id", "actor_id", "placement_group_id",
    "required_resources", "label_selector", "fallback_strategy", "call_site",
)  # fmt: skip
_PROFILE = attrgetter("task_id", "attempt_number", "job_id")
_COMPONENT = attrgetter("component_type", "component_id", "node_ip_address")
_MIN_INT, _MAX_INT = -(2**63) + 1, 2**63 - 1


def add_definitions(
    rows: RowBuffer, events: Sequence[event_types.TaskDefinition], sent: Sequence[int]
) -> list[Anomaly]:
    """Add definitions; `sent` holds the time of each event."""
    if not events:
        return []
    task, attempt, job, task_type, language, parent, actor, group, resources, labels, fallback, call_site = zip(
        *map(_DEFINITION, events), strict=True
    )
    task_ids = ids.all_to_hex(task, ids.TASK)
    columns: Columns = {
        "task_id": task_ids,
        "attempt": attempt,
        "job_id": ids.all_to_hex(job, ids.JOB),
        "type": or_none(task_type),
        "name": [event.task_name or event.actor_task_name or None for event in events],
        "func_or_class_name": [function_name(event.task_func or event.actor_func) for event in events],
        "language": or_none(language),
        "parent_task_id": ids.all_to_hex(parent, ids.TASK),
        "actor_id": _actor_ids(actor, task_type, task_ids),
        "placement_group_id": ids.all_to_hex(group, ids.PLACEMENT_GROUP),
        "required_resources": to_json_texts(resources),
        "label_selector": to_json_texts(labels),
        "fallback_strategy": to_json_texts(fallback),
        "runtime_env": list(map(_runtime_env, events)),
        "call_site": or_none(call_site),
        "defined_ns": sent,
    }
    return extend_task_rows(rows, "task_definitions", columns, task)


def _actor_ids(given: Sequence[str], types: Sequence[str], task_ids: Sequence[str | None]) -> Sequence[str | None]:
    if not any(given) and "ACTOR_CREATION_TASK" not in types:
        return [None] * len(given)
    return list(map(_actor_id, given, types, task_ids))


def _actor_id(given: str, task_type: str, task_id: str | None) -> str | None:
    actor_id = ids.to_hex(given, ids.ACTOR) if given else None
    if actor_id is None and task_id and task_type == "ACTOR_CREATION_TASK":
        return ids.actor_of_task(task_id)
    return actor_id


def _runtime_env(event: event_types.TaskDefinition) -> str | None:
    if event.serialized_runtime_env or event.runtime_env_info is None:
        return event.serialized_runtime_env or None
    return event.runtime_env_info.serialized_runtime_env or None


def function_name(function: event_types.Function | None) -> str | None:
    """Return `Class.method` or the function's name, shortened as Ray does."""
    if function is None:
        return None
    if python := function.python_function_descriptor:
        name = _last_part(python.function_name)
        return (f"{_last_part(python.class_name)}.{name}" if python.class_name else name) or None
    if java := function.java_function_descriptor:
        return f"{java.class_name}.{java.function_name}" if java.class_name else java.function_name or None
    if cpp := function.cpp_function_descriptor:
        return cpp.function_name or None
    return None


def _last_part(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def add_profiles(rows: RowBuffer, events: Sequence[event_types.TaskProfile]) -> list[Anomaly]:
    """Add profile spans.

    Two kinds of events have no rows: those without spans, and those of threads that run no task, as in Ray Train.
    """
    candidates = [event for event in events if event.profile_events and event.task_id not in ids.NIL_TASKS]
    profiles = [event.profile_events or event_types.ProfileSpans() for event in candidates]
    texts = to_json_texts([profile.events for profile in profiles])
    with_spans, profiles = list(compress(candidates, texts)), list(compress(profiles, texts))
    if not with_spans:
        return []
    task, attempt, job = zip(*map(_PROFILE, with_spans), strict=True)
    component, component_id, ip = zip(*map(_COMPONENT, profiles), strict=True)
    columns: Columns = {
        "task_id": ids.all_to_hex(task, ids.TASK),
        "attempt": attempt,
        "job_id": ids.all_to_hex(job, ids.JOB),
        "component_type": or_none(component),
        "component_id": [ids.any_to_hex(each) or None for each in component_id],
        "node_ip": or_none(ip),
        "spans": [camel_spans(text) if '"event_name"' in text else text for text in texts if text],
    }
    return extend_task_rows(rows, "profile_events", columns, task)


def or_none(values: Sequence[object]) -> Sequence[object]:
    """Return the values, with None for empty ones."""
    return values if all(values) else [value or None for value in values]


def extend_task_rows(rows: RowBuffer, table: str, columns: Columns, given_ids: Sequence[str]) -> list[Anomaly]:
    """Add the rows whose task id and attempt are valid. Return an anomaly for each of the others."""
    task_ids, attempts = columns["task_id"], cast("Sequence[int]", columns["attempt"])
    if all(task_ids) and min(attempts) >= _MIN_INT and max(attempts) <= _MAX_INT:
        rows.extend(table, columns)
        return []
    is_valid = [task_id and _MIN_INT <= n <= _MAX_INT for task_id, n in zip(task_ids, attempts, strict=True)]
    rows.extend(table, {name: list(compress(column, is_valid)) for name, column in columns.items()})
    return [
        (GapCode.ROW_WITHOUT_KEY, table) if task_id else (GapCode.ID_INVALID, f"task {given}")
        for given, task_id, valid in zip(given_ids, task_ids, is_valid, strict=True)
        if not valid
    ]
