"""Hints for conditions whose value cannot occur, such as `state=FALED`."""

import difflib
from collections.abc import Iterable, Iterator

from rayhistory.events.table_columns import TASK_STATES
from rayhistory.index.query.query import Condition, Filter
from rayhistory.index.query.where import parse_where
from rayhistory.server.ray_api.state_schema import (
    ACTOR_STATES,
    EXIT_TYPES,
    JOB_STATUSES,
    NODE_STATES,
    PLACEMENT_GROUP_STATES,
    TASK_TYPES,
    WORKER_TYPES,
)

KNOWN_VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("tasks", "state"): TASK_STATES,
    ("tasks", "type"): TASK_TYPES,
    ("actors", "state"): ACTOR_STATES,
    ("jobs", "status"): JOB_STATUSES,
    ("jobs", "type"): ("SUBMISSION", "DRIVER"),
    ("nodes", "state"): NODE_STATES,
    ("workers", "worker_type"): WORKER_TYPES,
    ("workers", "exit_type"): EXIT_TYPES,
    ("placement_groups", "state"): PLACEMENT_GROUP_STATES,
}
"""The values that Ray reports, by table and column."""


def unknown_values(table: str, where: Iterable[str]) -> Iterator[str]:
    """Yield a hint for each condition that compares a column with a value that Ray does not report."""
    for each in (each for text in where for each in _comparisons(parse_where(text))):
        known = KNOWN_VALUES.get((table, each.column), ())
        if known and each.operator == "=" and isinstance(each.value, str) and each.value.upper() not in known:
            near = difflib.get_close_matches(each.value.upper(), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
            yield f"{each.column}={each.value} matches no row: {hint}"


def _comparisons(condition: Condition) -> Iterator[Filter]:
    if isinstance(condition, Filter):
        yield condition
        return
    for each in condition.conditions:
        yield from _comparisons(each)
