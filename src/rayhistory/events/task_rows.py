"""Rows of task events, made many at a time and by column, because a session can have millions."""

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import cast

from rayhistory import ids
from rayhistory.events import event_types
from rayhistory.events.bulk_times import parse_all
from rayhistory.events.profile_spans import camel_spans
from rayhistory.events.row_buffer import Anomaly, RowBuffer, invalid_transition, to_json_texts
from rayhistory.events.table_columns import TASK_STATES, state_column
from rayhistory.events.times import parse_ns
from rayhistory.gaps import GapCode

Columns = dict[str, Sequence[object]]

_STATE_NUMBERS = [str(number) for number in range(1, len(TASK_STATES) + 1)]
_METRICS_ONLY_STATES = {"GETTING_AND_PINNING_ARGS", "13", "NIL", "0"}
"""States that Ray uses only for metrics and does not list."""
_LOG_COLUMNS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")
_ERROR_COLUMNS = ("error_ns", "error_type", "error_message")
_STATE_COLUMNS = tuple(map(state_column, TASK_STATES))
_SUBMITTED, _RUNNING = TASK_STATES.index("SUBMITTED_TO_WORKER"), TASK_STATES.index("RUNNING")
_LIFECYCLE = attrgetter(
    "task_id", "task_attempt", "job_id", "node_id", "worker_id", "worker_pid", "actor_repr_name", "is_debugger_paused",
    "task_log_info", "ray_error_info",
)  # fmt: skip
_DEFINITION = attrgetter(
    "task_id", "task_attempt", "job_id", "task_type", "language", "parent_task_id", "placement_group_id",
    "required_resources", "label_selector", "fallback_strategy", "call_site",
)  # fmt: skip
_PROFILE = attrgetter("task_id", "attempt_number", "job_id")
_COMPONENT = attrgetter("component_type", "component_id", "node_ip_address")
_INT_BITS = 64
_NO_LOG = (None,) * len(_LOG_COLUMNS)
_NO_ERROR = (None,) * len(_ERROR_COLUMNS)


def add_lifecycles(rows: RowBuffer, events: Sequence[event_types.TaskLifecycle], sent: Sequence[int]) -> list[Anomaly]:
    """Add state transitions; `sent` holds the time of each event."""
    if not events:
        return []
    task, attempt, job, node, worker, pid, repr_name, paused, logs, errors = zip(*map(_LIFECYCLE, events), strict=True)
    times, anomalies = _state_times(events)
    columns: Columns = {
        "task_id": ids.all_to_hex(task, ids.TASK),
        "attempt": attempt,
        "job_id": ids.all_to_hex(job, ids.JOB),
        **_place_columns(ids.all_to_hex(node, ids.NODE), ids.all_to_hex(worker, ids.WORKER), pid, times, sent),
        "actor_repr_name": _or_none(repr_name),
        **_pause_columns(paused, sent),
        **_named(_LOG_COLUMNS, zip(*[_log_values(log) if log else _NO_LOG for log in logs], strict=True)),
        **_named(_ERROR_COLUMNS, _error_values(errors, times[-1], sent)),
        **_named(_STATE_COLUMNS, times),
    }
    return anomalies + _extend(rows, "task_updates", columns, task)


def _named(names: Sequence[str], columns: Iterable[Sequence[object]]) -> Columns:
    return dict(zip(names, columns, strict=True))


def _place_columns(
    nodes: Sequence[str | None],
    workers: Sequence[str | None],
    pids: Sequence[int],
    times: Sequence[Sequence[int | None]],
    sent: Sequence[int],
) -> Columns:
    """Return the node, worker and pid of each attempt, with their times. Values of different reports are never mixed.

    The owner reports node and worker, the executor only the process. Other reports have all three.
    """
    is_placed = [bool(node or worker) for node, worker in zip(nodes, workers, strict=True)]
    placed_at = zip(times[_SUBMITTED], times[_RUNNING], sent, strict=True)
    has_process = [bool(pid) and not placed for pid, placed in zip(pids, is_placed, strict=True)]
    return {
        "placed_ns": [
            (submitted or running or ns) if placed else None
            for placed, (submitted, running, ns) in zip(is_placed, placed_at, strict=True)
        ],
        "node_id": nodes,
        "worker_id": workers,
        "worker_pid": [pid or None if placed else None for pid, placed in zip(pids, is_placed, strict=True)],
        "process_ns": [
            (running or ns) if known else None
            for known, running, ns in zip(has_process, times[_RUNNING], sent, strict=True)
        ],
        "process_pid": [pid if known else None for pid, known in zip(pids, has_process, strict=True)],
    }


def _pause_columns(paused: Sequence[bool | None], sent: Sequence[int]) -> Columns:
    """Return the times at which the debugger paused and resumed each task."""
    if all(value is None for value in paused):
        return {"paused_ns": [None] * len(paused), "resumed_ns": [None] * len(paused)}
    return {
        "paused_ns": [ns if value else None for value, ns in zip(paused, sent, strict=True)],
        "resumed_ns": [ns if value is False else None for value, ns in zip(paused, sent, strict=True)],
    }


def _error_values(
    errors: Sequence[event_types.ErrorInfo | None], failed: Sequence[int | None], sent: Sequence[int]
) -> Iterable[Sequence[object]]:
    if not any(errors):
        return [[None] * len(errors)] * len(_ERROR_COLUMNS)
    values = [
        (at or ns, error.error_type or None, error.error_message or None) if error else _NO_ERROR
        for error, at, ns in zip(errors, failed, sent, strict=True)
    ]
    return zip(*values, strict=True)


def _state_times(events: Sequence[event_types.TaskLifecycle]) -> tuple[list[list[int | None]], list[Anomaly]]:
    """Return a column for each state: the times when the tasks of the events reached it. Also return anomalies."""
    times: list[list[int | None]] = [[None] * len(events) for _ in TASK_STATES]
    by_state = dict(zip(TASK_STATES, times, strict=True))
    by_number = by_state | dict(zip(_STATE_NUMBERS, times, strict=True))
    anomalies = []
    positions = [position for position, event in enumerate(events) for _ in event.state_transitions]
    changes = [change for event in events for change in event.state_transitions]
    stamps = parse_all([change.timestamp for change in changes])
    for position, change, at in zip(positions, changes, stamps, strict=True):
        column = by_state.get(change.state)
        if column is None or at is None:
            if change.state not in _METRICS_ONLY_STATES:
                anomalies.append(invalid_transition("task", change.state, change.timestamp, at))
            continue
        before = column[position]
        if before is None or at < before:
            column[position] = at
    for position, states in enumerate([event.task_state for event in events]):
        if states:  # Ray 2.49 and 2.50 send a map from the state's number to its time
            for number, text in states.items():
                at = parse_ns(text)
                if at is not None and number in by_number:
                    by_number[number][position] = at
                elif number not in _METRICS_ONLY_STATES:
                    anomalies.append(invalid_transition("task", number, text, at))
    return times, anomalies


def _log_values(log: event_types.TaskLogInfo) -> tuple[object, ...]:
    """Return the values of _LOG_COLUMNS.

    Before 2.58 Ray sent every field: 0 and "" mean unset, but a start of 0 is valid if there is a file.
    """
    return (
        log.stdout_file or None,
        log.stderr_file or None,
        log.stdout_start if log.stdout_file else log.stdout_start or None,
        log.stdout_end or None,
        log.stderr_start if log.stderr_file else log.stderr_start or None,
        log.stderr_end or None,
    )


def add_definitions(
    rows: RowBuffer, events: Sequence[event_types.TaskDefinition], sent: Sequence[int]
) -> list[Anomaly]:
    """Add definitions; `sent` holds the time of each event."""
    if not events:
        return []
    task, attempt, job, task_type, language, parent, group, resources, labels, fallback, call_site = zip(
        *map(_DEFINITION, events), strict=True
    )
    task_ids = ids.all_to_hex(task, ids.TASK)
    columns: Columns = {
        "task_id": task_ids,
        "attempt": attempt,
        "job_id": ids.all_to_hex(job, ids.JOB),
        "type": _or_none(task_type),
        "name": [event.task_name or event.actor_task_name or None for event in events],
        "func_or_class_name": [function_name(event.task_func or event.actor_func) for event in events],
        "language": _or_none(language),
        "parent_task_id": ids.all_to_hex(parent, ids.TASK),
        "actor_id": [_actor_id(event, task_id) for event, task_id in zip(events, task_ids, strict=True)],
        "placement_group_id": ids.all_to_hex(group, ids.PLACEMENT_GROUP),
        "required_resources": to_json_texts(resources),
        "label_selector": to_json_texts(labels),
        "fallback_strategy": to_json_texts(fallback),
        "runtime_env": list(map(_runtime_env, events)),
        "call_site": _or_none(call_site),
        "defined_ns": sent,
    }
    return _extend(rows, "task_definitions", columns, task)


def _actor_id(event: event_types.TaskDefinition, task_id: str | None) -> str | None:
    actor_id = ids.to_hex(event.actor_id, ids.ACTOR) if event.actor_id else None
    if actor_id is None and task_id and event.task_type == "ACTOR_CREATION_TASK":
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
        "component_type": _or_none(component),
        "component_id": [ids.any_to_hex(each) or None for each in component_id],
        "node_ip": _or_none(ip),
        "spans": [camel_spans(text) if '"event_name"' in text else text for text in texts if text],
    }
    return _extend(rows, "profile_events", columns, task)


def _or_none(values: Iterable[object]) -> list[object]:
    return [value or None for value in values]


def _extend(rows: RowBuffer, table: str, columns: Columns, given_ids: Sequence[str]) -> list[Anomaly]:
    """Add the rows whose task id and attempt are valid. Return an anomaly for each of the others."""
    task_ids, attempts = columns["task_id"], cast("Sequence[int]", columns["attempt"])
    if None not in task_ids and max(map(int.bit_length, attempts)) < _INT_BITS:
        rows.extend(table, columns)
        return []
    is_valid = [task_id and n.bit_length() < _INT_BITS for task_id, n in zip(task_ids, attempts, strict=True)]
    rows.extend(table, {name: list(compress(column, is_valid)) for name, column in columns.items()})
    return [
        (GapCode.ROW_WITHOUT_KEY, table) if task_id else (GapCode.ID_INVALID, f"task {given}")
        for given, task_id, valid in zip(given_ids, task_ids, is_valid, strict=True)
        if not valid
    ]
