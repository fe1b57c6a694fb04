"""Queries on tasks for several endpoints of Ray's API."""

from collections.abc import AsyncIterator

from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.ray_api.state_options import StateFilter, index_filters
from rayhistory.server.ray_api.state_rows import PROFILE_COLUMNS
from rayhistory.server.ray_api.state_schema import TASK_SOURCE_FILTERS, TASKS
from rayhistory.server.view import SessionView

NO_DRIVERS = Filter("type", "!=", "DRIVER_TASK")
"""Ray does not list drivers among the tasks."""
_MAX_PROFILES_PER_TASK = 4
"""Up to this many profiles per task in a range of ids, the whole range is read. Above, rows are selected by task id."""
_MAX_PROFILE_BYTES = 16 << 20


async def count_tasks(
    view: SessionView, state_filters: tuple[StateFilter, ...], base_filters: tuple[Filter, ...]
) -> int:
    """Return the total that Ray reports."""
    return await view.index.count(counted_query(state_filters, base_filters))


def counted_query(state_filters: tuple[StateFilter, ...], base_filters: tuple[Filter, ...]) -> Query:
    """Return the query for Ray's total. Ray applies some filters before it counts."""
    early = tuple(each for each in state_filters if each.column.name in TASK_SOURCE_FILTERS)
    return Query("tasks", filters=base_filters + index_filters(TASKS, early))


async def with_profiles(view: SessionView, tasks: list[Row]) -> AsyncIterator[tuple[list[Row], list[Row]]]:
    """Yield tasks, sorted by id, with the rows of their profiles, in groups of bounded size.

    Tasks may report any amount, so a group is halved until its profiles fit. For one task, Ray keeps a thousand spans;
    here the first megabytes are read.
    """
    groups = [tasks]
    while groups:
        group = groups.pop()
        query = Query("profile_events", PROFILE_COLUMNS, await _profile_filters(view, group), ("task_id", "attempt"))
        profiles, complete = await view.index.rows_within(query, _MAX_PROFILE_BYTES)
        if complete or len(group) <= 1:
            yield group, profiles
        else:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]


async def _profile_filters(view: SessionView, tasks: list[Row]) -> tuple[Filter, ...]:
    """Return filters that select the profiles of tasks, which are sorted by id.

    A range of ids is the cheapest filter. If the range has many profiles of other tasks, the ids are listed, too.
    """
    if not tasks:
        return (Filter("task_id", "=", None),)
    attempts = [row["attempt_number"] for row in tasks]
    id_range = (
        Filter("task_id", ">=", tasks[0]["task_id"]),
        Filter("task_id", "<=", tasks[-1]["task_id"]),
        Filter("attempt", ">=", min(attempts)),
        Filter("attempt", "<=", max(attempts)),
    )
    if await view.index.count(Query("profile_events", filters=id_range)) <= _MAX_PROFILES_PER_TASK * len(tasks):
        return id_range
    return (*id_range, Filter("task_id", "in", sorted({row["task_id"] for row in tasks})))
