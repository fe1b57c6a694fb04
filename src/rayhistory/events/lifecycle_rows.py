"""Rows of the state transitions of tasks, made many at a time and by column, because a session can have millions.

Reports of the same process have the same number of transitions, mostly through the same states. So events are
converted in groups of equal length. Then most columns of a group are slices of one list, or have no value at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import attrgetter

from rayhistory import ids
from rayhistory.events import event_types
from rayhistory.events.bulk_times import parse_all
from rayhistory.events.row_buffer import Anomaly, RowBuffer, invalid_transition
from rayhistory.events.table_columns import TASK_STATES, state_column
from rayhistory.events.task_rows import Columns, extend_task_rows, or_none
from rayhistory.events.times import parse_ns

Times = Sequence[Sequence[int | None]]
"""For each state, the times at which the tasks of the events reached it."""

_STATE_NUMBERS = [str(number) for number in range(1, len(TASK_STATES) + 1)]
_METRICS_ONLY_STATES = {"GETTING_AND_PINNING_ARGS", "13", "NIL", "0"}
"""States that Ray uses only for metrics and does not list."""
_MAX_GROUPS = 8
_LOG_COLUMNS = ("stdout_file", "stderr_file", "stdout_start", "stdout_end", "stderr_start", "stderr_end")
_ERROR_COLUMNS = ("error_ns", "error_type", "error_message")
_STATE_COLUMNS = tuple(map(state_column, TASK_STATES))
_SUBMITTED, _RUNNING = TASK_STATES.index("SUBMITTED_TO_WORKER"), TASK_STATES.index("RUNNING")
_LIFECYCLE = attrgetter(
    "task_id", "task_attempt", "job_id", "node_id", "worker_id", "worker_pid", "actor_repr_name", "is_debugger_paused",
    "task_log_info", "ray_error_info",
)  # fmt: skip
_TRANSITIONS, _TASK_STATE = attrgetter("state_transitions"), attrgetter("task_state")
_STATE, _TIMESTAMP = attrgetter("state"), attrgetter("timestamp")
_NO_LOG = (None,) * len(_LOG_COLUMNS)
_NO_ERROR = (None,) * len(_ERROR_COLUMNS)


def add_lifecycles(rows: RowBuffer, events: Sequence[event_types.TaskLifecycle], sent: Sequence[int]) -> list[Anomaly]:
    """Add state transitions; `sent` holds the time of each event."""
    return [anomaly for group in _groups(events, sent) for anomaly in _add_group(rows, *group)]


_Group = tuple[Sequence[event_types.TaskLifecycle], Sequence[int], int | None]
"""Events, when they were sent, and their number of transitions if that is the same for all of them."""


def _groups(events: Sequence[event_types.TaskLifecycle], sent: Sequence[int]) -> Iterator[_Group]:
    lengths = list(map(len, map(_TRANSITIONS, events)))
    different = set(lengths)
    if len(different) == 1:
        yield events, sent, lengths[0]
    elif len(different) > _MAX_GROUPS:
        yield events, sent, None
    else:
        for length in different:
            chosen = [each == length for each in lengths]
            yield list(compress(events, chosen)), list(compress(sent, chosen)), length


def _add_group(
    rows: RowBuffer, events: Sequence[event_types.TaskLifecycle], sent: Sequence[int], length: int | None
) -> list[Anomaly]:
    task, attempt, job, node, worker, pid, repr_name, paused, logs, errors = zip(*map(_LIFECYCLE, events), strict=True)
    anomalies: list[Anomaly] = []
    times = None if length is None else _aligned_times(events, length)
    if times is None:
        times, anomalies = _state_times(events)
    columns: Columns = {
        "task_id": ids.all_to_hex(task, ids.TASK),
        "attempt": attempt,
        "job_id": ids.all_to_hex(job, ids.JOB),
        **_place_columns(ids.all_to_hex(node, ids.NODE), ids.all_to_hex(worker, ids.WORKER), pid, times, sent),
        "actor_repr_name": or_none(repr_name),
        **_pause_columns(paused, sent),
        **_named(_LOG_COLUMNS, _log_values(logs)),
        **_named(_ERROR_COLUMNS, _error_values(errors, times[-1], sent)),
        **_named(_STATE_COLUMNS, times),
    }
    return anomalies + extend_task_rows(rows, "task_updates", columns, task)


def _named(names: Sequence[str], columns: Iterable[Sequence[object]]) -> Columns:
    return dict(zip(names, columns, strict=True))


def _aligned_times(events: Sequence[event_types.TaskLifecycle], length: int) -> Times | None:
    """Return the times of events with `length` transitions each.

    Return None if a state is unknown, if it is at several positions, or if a time is unreadable.
    """
    if any(map(_TASK_STATE, events)):
        return None
    changes = list(chain.from_iterable(map(_TRANSITIONS, events)))
    states, stamps = list(map(_STATE, changes)), parse_all(list(map(_TIMESTAMP, changes)))
    if not all(stamps):
        return None
    none: Sequence[int | None] = [None] * len(events)
    times = dict.fromkeys(TASK_STATES, none)
    for position in range(length):
        reached, at = states[position::length], stamps[position::length]
        is_uniform = reached.count(reached[0]) == len(reached)
        for state in reached[:1] if is_uniform else set(reached):
            if times.get(state) is not none:
                return None
            times[state] = at if is_uniform else [ns if s == state else None for s, ns in zip(reached, at, strict=True)]
    return list(times.values())


def _state_times(events: Sequence[event_types.TaskLifecycle]) -> tuple[Times, list[Anomaly]]:
    """Return the times of any events, and anomalies."""
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


def _place_columns(
    nodes: Sequence[str | None], workers: Sequence[str | None], pids: Sequence[int], times: Times, sent: Sequence[int]
) -> Columns:
    """Return the node, worker and pid of each attempt, with their times. Values of different reports are never mixed.

    The owner reports node and worker, the executor only the process. Other reports have all three.
    """
    none: Sequence[None] = [None] * len(nodes)
    columns: Columns = {
        "placed_ns": none, "node_id": nodes, "worker_id": workers, "worker_pid": none,
        "process_ns": none, "process_pid": none,
    }  # fmt: skip
    is_placed = list(map(bool, nodes)) if all(nodes) else [bool(n or w) for n, w in zip(nodes, workers, strict=True)]
    if any(is_placed):
        placed_at = zip(times[_SUBMITTED], times[_RUNNING], sent, strict=True)
        columns["placed_ns"] = [
            (submitted or running or ns) if placed else None
            for placed, (submitted, running, ns) in zip(is_placed, placed_at, strict=True)
        ]
        if any(pids):
            columns["worker_pid"] = [(placed and pid) or None for pid, placed in zip(pids, is_placed, strict=True)]
    if any(pids) and not all(is_placed):
        has_process = [bool(pid) and not placed for pid, placed in zip(pids, is_placed, strict=True)]
        columns["process_ns"] = [
            (running or ns) if known else None
            for known, running, ns in zip(has_process, times[_RUNNING], sent, strict=True)
        ]
        columns["process_pid"] = [pid if known else None for pid, known in zip(pids, has_process, strict=True)]
    return columns


def _pause_columns(paused: Sequence[bool | None], sent: Sequence[int]) -> Columns:
    """Return the times at which the debugger paused and resumed each task."""
    columns: Columns = {"paused_ns": [None] * len(paused), "resumed_ns": [None] * len(paused)}
    for name, wanted in (("paused_ns", True), ("resumed_ns", False)):
        if wanted in paused:
            columns[name] = [ns if value is wanted else None for value, ns in zip(paused, sent, strict=True)]
    return columns


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


def _log_values(logs: Sequence[event_types.TaskLogInfo | None]) -> Iterable[Sequence[object]]:
    """Return the values of _LOG_COLUMNS.

    Before 2.58 Ray sent every field: 0 and "" mean unset, but a start of 0 is valid if there is a file.
    """
    if not any(logs):
        return [[None] * len(logs)] * len(_LOG_COLUMNS)
    values = [
        (
            log.stdout_file or None,
            log.stderr_file or None,
            log.stdout_start if log.stdout_file else log.stdout_start or None,
            log.stdout_end or None,
            log.stderr_start if log.stderr_file else log.stderr_start or None,
            log.stderr_end or None,
        )
        if log
        else _NO_LOG
        for log in logs
    ]
    return zip(*values, strict=True)
