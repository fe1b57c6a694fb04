"""Rows of the events of tasks, many at a time and column by column: a session can have millions of them."""

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import cast

from rayhistory import ids
from rayhistory.events import wire
from rayhistory.events.columns import NO_KEY, Problem, Rows, json_texts, odd_change
from rayhistory.events.spans import camel_spans
from rayhistory.events.tables import TASK_STATES
from rayhistory.events.times import parse_all, parse_ns

_NUMBERS = [str(number) for number in range(1, len(TASK_STATES) + 1)]
_METRICS_ONLY_STATES = {"GETTING_AND_PINNING_ARGS", "13", "NIL", "0"}
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
_BITS = 64
_NO_LOG = (None,) * 6
_NO_ERROR = (None,) * 3


def add_lifecycles(out: Rows, events: Sequence[wire.TaskLifecycle], sent: Sequence[int]) -> list[Problem]:
    """`sent` holds the time at which each event was made."""
    if not events:
        return []
    task, attempt, job, node, worker, pid, repr_name, paused, logs, errors = zip(*map(_LIFECYCLE, events), strict=True)
    times, problems = _times_of_states(events)
    columns = (
        ids.hexes(task, ids.TASK),
        attempt,
        ids.hexes(job, ids.JOB),
        ids.hexes(node, ids.NODE),
        ids.hexes(worker, ids.WORKER),
        _or_none(pid),
        _or_none(repr_name),
        *_pause_columns(paused, sent),
        *zip(*[_log_columns(log) if log else _NO_LOG for log in logs], strict=True),
        *_error_columns(errors, times[-1], sent),
        *times,
    )
    return problems + _extend(out, "task_updates", columns, task)


def _pause_columns(paused: Sequence[bool | None], sent: Sequence[int]) -> tuple[list[int | None], list[int | None]]:
    """When the debugger held each task, and when it let it go."""
    if not any(said is not None for said in paused):
        return [None] * len(paused), [None] * len(paused)
    held = [ns if said else None for said, ns in zip(paused, sent, strict=True)]
    return held, [ns if said is False else None for said, ns in zip(paused, sent, strict=True)]


def _error_columns(
    errors: Sequence[wire.ErrorInfo | None], failed: Sequence[int | None], sent: Sequence[int]
) -> Iterable[Sequence[object]]:
    if not any(errors):
        return [[None] * len(errors)] * 3
    told = [
        (at or ns, error.error_type or None, error.error_message or None) if error else _NO_ERROR
        for error, at, ns in zip(errors, failed, sent, strict=True)
    ]
    return zip(*told, strict=True)


def _times_of_states(events: Sequence[wire.TaskLifecycle]) -> tuple[list[list[int | None]], list[Problem]]:
    """For each state, when each event says that it was reached."""
    times: list[list[int | None]] = [[None] * len(events) for _ in TASK_STATES]
    by_state = dict(zip(TASK_STATES, times, strict=True))
    by_number = by_state | dict(zip(_NUMBERS, times, strict=True))
    problems = []
    rows = [row for row, event in enumerate(events) for _ in event.state_transitions]
    changes = [change for event in events for change in event.state_transitions]
    stamps = parse_all([change.timestamp for change in changes])
    for row, change, at in zip(rows, changes, stamps, strict=True):
        column = by_state.get(change.state)
        if column is None or at is None:
            if change.state not in _METRICS_ONLY_STATES:
                problems.append(odd_change("task", change.state, change.timestamp, at))
            continue
        before = column[row]
        if before is None or at < before:
            column[row] = at
    for row, states in enumerate([event.task_state for event in events]):
        if states:  # Ray 2.49 and 2.50: a map from the state's number
            for number, text in states.items():
                at = parse_ns(text)
                if at is not None and number in by_number:
                    by_number[number][row] = at
                elif number not in _METRICS_ONLY_STATES:
                    problems.append(odd_change("task", number, text, at))
    return times, problems


def _log_columns(log: wire.TaskLogInfo) -> tuple[object, ...]:
    """Before 2.58 every field was always printed: 0 and "" mean unset, but for a start of 0 beside a file."""
    return (
        log.stdout_file or None,
        log.stderr_file or None,
        log.stdout_start if log.stdout_file else log.stdout_start or None,
        log.stdout_end or None,
        log.stderr_start if log.stderr_file else log.stderr_start or None,
        log.stderr_end or None,
    )


def add_definitions(out: Rows, events: Sequence[wire.TaskDefinition], sent: Sequence[int]) -> list[Problem]:
    if not events:
        return []
    task, attempt, job, kind, language, parent, group, resources, labels, fallback, call_site = zip(
        *map(_DEFINITION, events), strict=True
    )
    task_ids = ids.hexes(task, ids.TASK)
    columns = (
        task_ids,
        attempt,
        ids.hexes(job, ids.JOB),
        _or_none(kind),
        [event.task_name or event.actor_task_name or None for event in events],
        [function_name(event.task_func or event.actor_func) for event in events],
        _or_none(language),
        ids.hexes(parent, ids.TASK),
        [_actor(event, task_id) for event, task_id in zip(events, task_ids, strict=True)],
        ids.hexes(group, ids.PLACEMENT_GROUP),
        json_texts(resources),
        json_texts(labels),
        json_texts(fallback),
        list(map(_runtime_env, events)),
        _or_none(call_site),
        sent,
    )
    return _extend(out, "task_definitions", columns, task)


def _actor(event: wire.TaskDefinition, task_id: str | None) -> str | None:
    actor = ids.to_hex(event.actor_id, ids.ACTOR) if event.actor_id else None
    if actor is None and task_id and event.task_type == "ACTOR_CREATION_TASK":
        return ids.actor_of_task(task_id)
    return actor


def _runtime_env(event: wire.TaskDefinition) -> str | None:
    if event.serialized_runtime_env or event.runtime_env_info is None:
        return event.serialized_runtime_env or None
    return event.runtime_env_info.serialized_runtime_env or None


def function_name(function: wire.Function | None) -> str | None:
    """`Class.method` or the function's name, as Ray shortens them."""
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


def add_profiles(out: Rows, events: Sequence[wire.TaskProfile]) -> list[Problem]:
    """Those without spans say nothing."""
    told = [event for event in events if event.profile_events]
    profiles = [event.profile_events or wire.ProfileSpans() for event in told]
    texts = json_texts([profile.events for profile in profiles])
    told, profiles = list(compress(told, texts)), list(compress(profiles, texts))
    if not told:
        return []
    task, attempt, job = zip(*map(_PROFILE, told), strict=True)
    component, component_id, ip = zip(*map(_COMPONENT, profiles), strict=True)
    columns = (
        ids.hexes(task, ids.TASK),
        attempt,
        ids.hexes(job, ids.JOB),
        _or_none(component),
        [ids.any_to_hex(each) or None for each in component_id],
        _or_none(ip),
        [camel_spans(text) if '"event_name"' in text else text for text in texts if text],
    )
    return _extend(out, "profile_events", columns, task)


def _or_none(values: Iterable[object]) -> list[object]:
    return [value or None for value in values]


def _extend(out: Rows, table: str, columns: Sequence[Sequence[object]], given: Sequence[str]) -> list[Problem]:
    """Adds the rows; one whose task or attempt is none, whatever was given as one, is left out and told."""
    known, attempts = columns[0], cast("Sequence[int]", columns[1])
    if None not in known and max(map(int.bit_length, attempts)) < _BITS:
        out.extend(table, columns)
        return []
    good = [task_id and attempt.bit_length() < _BITS for task_id, attempt in zip(known, attempts, strict=True)]
    out.extend(table, [list(compress(column, good)) for column in columns])
    return [
        (NO_KEY, table) if task_id else ("not a task id", text)
        for text, task_id, fine in zip(given, known, good, strict=True)
        if not fine
    ]
