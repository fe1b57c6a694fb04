"""The number of tasks in each state over the life of a session, counted in the database."""

import msgspec

from rayhistory.index.query.database import execute
from rayhistory.index.query.open_index import OpenIndex

BINS = 60
_END = "coalesce(finished_ns, failed_ns, closed_ns)"
_STARTED = f"coalesce(running_ns, {_END})"
_SUBMITTED = f"coalesce(submitted_to_worker_ns, {_STARTED})"
_PLACED = f"coalesce(pending_args_fetch_ns, {_SUBMITTED})"
_READY = f"coalesce(pending_node_assignment_ns, {_PLACED})"
_QUEUED = f"CASE WHEN type = 'ACTOR_TASK' THEN {_SUBMITTED} ELSE {_STARTED} END"
"""Calls of an actor are sent to its process at once, and wait there until it is free."""
_BEGINS = {
    "waiting_args": "pending_args_avail_ns", "waiting_node": _READY, "fetching_args": _PLACED, "starting": _SUBMITTED,
    "waiting_actor": _QUEUED, "running": _STARTED, "": _END,
}  # fmt: skip
"""The time when a task enters each state. It leaves a state when it enters the next one, or when it ends."""
_LISTED = (
    "type <> 'DRIVER_TASK' AND NOT starts_with(func_or_class_name, 'JobSupervisor') "
    "AND pending_args_avail_ns IS NOT NULL"
)


class StateTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks in each state at the end of each period."""

    start_ms: int = 0
    end_ms: int = 0
    states: dict[str, list[int]] = {}
    """Numbers of tasks by state, in the order of a task's life."""


_BOUNDS = f"SELECT min(pending_args_avail_ns) AS low, max({_END}) AS high FROM {{tasks}} WHERE {_LISTED}"


_BINS = ", ".join(
    f"greatest(least(({begin} - $low) // $width, {BINS - 1}), 0)::UTINYINT AS bin_{number}"
    for number, begin in enumerate(_BEGINS.values())
)
_COUNTS = " UNION ALL ".join(
    f"SELECT {number} AS state, bin_{number} AS bin, count(*) AS count FROM bins WHERE bin_{number} IS NOT NULL "
    "GROUP BY ALL"
    for number in range(len(_BEGINS))
)
_ENTERED = f"WITH bins AS MATERIALIZED (SELECT {_BINS} FROM {{tasks}} WHERE {_LISTED}) {_COUNTS}"
"""Query of the number of tasks that entered each state in each period.

The table of tasks is read only once, into seven bytes per task, from which all states are counted.
"""


async def read_state_timeline(index: OpenIndex) -> StateTimeline:
    """Return the states of all tasks over time; empty if there are none."""

    def work(tasks: str) -> StateTimeline:
        bounds = execute(_BOUNDS.format(tasks=tasks), [])[0]
        low, high = bounds["low"], bounds["high"]
        if low is None or high is None or high <= low:
            return StateTimeline()
        width = (int(high) - int(low)) // BINS + 1
        sql = _ENTERED.format(tasks=tasks).replace("$low", str(int(low))).replace("$width", str(width))
        rows = execute(sql, [])
        entered = [[0] * BINS for _ in _BEGINS]
        for row in rows:
            entered[row["state"]][row["bin"]] = row["count"]
        return StateTimeline(start_ms=low // 1_000_000, end_ms=high // 1_000_000, states=_states(entered))

    return await index.read(("tasks",), work)


def _states(entered: list[list[int]]) -> dict[str, list[int]]:
    """Return the number of tasks in each state: those that entered it, minus those that entered the next one."""
    totals = [_running_totals(counts) for counts in entered]
    names = [name for name in _BEGINS if name]
    return {
        name: [max(0, here - left) for here, left in zip(totals[number], totals[number + 1], strict=True)]
        for number, name in enumerate(names)
    }


def _running_totals(counts: list[int]) -> list[int]:
    total, totals = 0, []
    for count in counts:
        total += count
        totals.append(total)
    return totals
