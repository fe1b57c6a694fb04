"""Rows of state transitions that are made many at a time."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rayhistory.events.event_types import ErrorInfo, StateTransition, TaskLifecycle, TaskLogInfo
from rayhistory.events.lifecycle_rows import add_lifecycles
from rayhistory.events.row_buffer import Anomaly, RowBuffer
from rayhistory.events.table_columns import TABLES_BY_NAME, TASK_STATES, state_column
from rayhistory.events.times import parse_ns
from rayhistory.gaps import GapCode

NAMES = TABLES_BY_NAME["task_updates"].names
JOB, NODE, WORKER = "01000000", "c" * 56, "d" * 56

states = st.sampled_from([*TASK_STATES[4:8], *TASK_STATES[-2:], "GETTING_AND_PINNING_ARGS", "NEW_STATE"])
VALID = [f"2026-11-15T19:18:4{n}.5Z" for n in range(4)]
stamps = st.sampled_from([*VALID * 8, "1970-01-01T00:00:00Z", "soon"])
transitions = st.lists(st.builds(StateTransition, state=states, timestamp=stamps), max_size=3)
begun, ended = (
    st.builds(StateTransition, state=st.sampled_from(names), timestamp=stamps)
    for names in (TASK_STATES[4:6], [*TASK_STATES[-3:], "RUNNING"])
)
logs = st.none() | st.builds(
    TaskLogInfo,
    stdout_file=st.sampled_from(["", "out"]),
    stdout_start=st.sampled_from([None, 0, 5]),
    stdout_end=st.just(0),
)
lifecycles = st.builds(
    TaskLifecycle,
    task_id=st.sampled_from(["a" * 48, "b" * 48, "b" * 48, "short"]),
    task_attempt=st.sampled_from([0, 0, 1, 2**63]),
    state_transitions=transitions,
    task_state=st.sampled_from([{}, {}, {}, {"8": "2026-11-15T19:18:40.5Z"}]),
    ray_error_info=st.none() | st.just(ErrorInfo("WORKER_DIED", "")),
    node_id=st.sampled_from(["", NODE]),
    worker_id=st.sampled_from(["", WORKER]),
    worker_pid=st.sampled_from([0, 7]),
    job_id=st.sampled_from(["", JOB]),
    is_debugger_paused=st.sampled_from([None, None, True, False]),
    actor_repr_name=st.sampled_from(["", "Actor"]),
    task_log_info=logs,
)


orderly = st.tuples(begun, ended).flatmap(
    lambda changes: lifecycles.map(lambda event: replace(event, state_transitions=list(changes), task_state={}))
)
"""Events as Ray sends them, which are converted in groups."""


def expected_row(event: TaskLifecycle, sent: int) -> dict[str, Any]:
    """Convert one event without its siblings, in the most direct way."""
    times: dict[str, int] = {}
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is not None and change.state in TASK_STATES:
            times[change.state] = min(at, times.get(change.state, at))
    if event.task_state:
        times["RUNNING"] = parse_ns(event.task_state["8"]) or 0
    placed = bool(event.node_id or event.worker_id)
    running = times.get("RUNNING") or sent
    log, error = event.task_log_info or TaskLogInfo(), event.ray_error_info
    return dict.fromkeys(NAMES) | {
        "task_id": event.task_id,
        "attempt": event.task_attempt,
        "job_id": event.job_id or None,
        "placed_ns": (times.get("SUBMITTED_TO_WORKER") or running) if placed else None,
        "node_id": event.node_id or None,
        "worker_id": event.worker_id or None,
        "worker_pid": event.worker_pid or None if placed else None,
        "process_ns": running if event.worker_pid and not placed else None,
        "process_pid": event.worker_pid if event.worker_pid and not placed else None,
        "actor_repr_name": event.actor_repr_name or None,
        "paused_ns": sent if event.is_debugger_paused else None,
        "resumed_ns": sent if event.is_debugger_paused is False else None,
        "stdout_file": log.stdout_file or None,
        "stdout_start": log.stdout_start if log.stdout_file else log.stdout_start or None,
        "error_ns": (times.get("FAILED") or sent) if error else None,
        "error_type": error.error_type if error else None,
        **{state_column(state): at for state, at in times.items()},
    }


def expected_anomalies(event: TaskLifecycle) -> list[Anomaly]:
    found: list[Anomaly] = []
    for change in event.state_transitions:
        if change.state == "GETTING_AND_PINNING_ARGS":
            continue
        if parse_ns(change.timestamp) is None:
            found.append((GapCode.TIMESTAMP_UNREADABLE, f"task {change.state} {change.timestamp}"))
        elif change.state not in TASK_STATES:
            found.append((GapCode.STATE_UNKNOWN, f"task {change.state}"))
    if event.task_id == "short":
        found.append((GapCode.ID_INVALID, "task short"))
    elif event.task_attempt == 2**63:
        found.append((GapCode.ROW_WITHOUT_KEY, "task_updates"))
    return found


def assert_rows_of_each(events: list[TaskLifecycle], first: int = 1) -> None:
    """Compare the rows of events that are added together with those of each of them."""
    sent = [first + number for number in range(len(events))]
    rows = RowBuffer()
    anomalies = add_lifecycles(rows, events, sent)
    expected = [
        tuple(expected_row(event, at)[name] for name in NAMES)
        for event, at in zip(events, sent, strict=True)
        if event.task_id != "short" and event.task_attempt < 2**63
    ]
    assert Counter(rows.rows("task_updates")) == Counter(expected)
    assert Counter(anomalies) == Counter(anomaly for event in events for anomaly in expected_anomalies(event))


@settings(max_examples=60, deadline=None)
@given(st.lists(lifecycles, max_size=30) | st.lists(orderly, max_size=9), st.integers(1, 10**18))
def test_events_of_any_mixture_become_the_rows_of_each(events: list[TaskLifecycle], first: int) -> None:
    assert_rows_of_each(events, first)


def reached(*states: tuple[str, str], **fields: Any) -> TaskLifecycle:
    return TaskLifecycle(task_id="a" * 48, state_transitions=[StateTransition(*state) for state in states], **fields)


def test_state_that_is_reached_twice_has_its_earliest_time() -> None:
    assert_rows_of_each([reached(("RUNNING", VALID[1]), ("RUNNING", VALID[2]))] * 3)
    assert_rows_of_each([reached(("RUNNING", VALID[1]), ("FAILED", VALID[2])), reached(*[("FAILED", VALID[0])] * 2)])


def test_times_by_number_of_the_state_are_read_beside_transitions() -> None:
    assert_rows_of_each([reached(("FAILED", VALID[1])), reached(("FAILED", VALID[1]), task_state={"8": VALID[0]})])


def test_events_with_many_different_numbers_of_transitions() -> None:
    events = [
        TaskLifecycle(task_id="a" * 48, state_transitions=[StateTransition("RUNNING", "2026-11-15T19:18:40Z")] * count)
        for count in range(20)
    ]
    rows = RowBuffer()
    assert add_lifecycles(rows, events, [1] * 20) == []
    running = [row[NAMES.index("running_ns")] for row in rows.rows("task_updates")]
    assert running == [None, *[1794770320_000000000] * 19]
