"""Queries on tasks for several endpoints of Ray's API."""

from collections.abc import AsyncIterator

from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.ray_api.state_options import StateFilter, index_filters
from rayhistory.server.ray_api.state_rows import PROFILE_COLUMNS
from rayhistory.server.ray_api.state_schema import TASK_SOURCE_FILTERS, TASKS
from rayhistory.server.view import SessionView

NO_DRIVERS = Filter("type", "!=", "DRIVER_TASK")
"""Filter that excludes drivers, because Ray does not list them among the tasks."""
_MAX_PROFILES_PER_TASK = 4
"""If a range of task ids has more profile events per task than this, the query also lists the ids of the tasks."""
_MAX_PROFILE_BYTES = 16 << 20


async def count_tasks(
    view: SessionView, state_filters: tuple[StateFilter, ...], base_filters: tuple[Filter, ...]
) -> int:
    """Return the total number of tasks that Ray would report."""
    return await view.index.count(counted_query(state_filters, base_filters))


def counted_query(state_filters: tuple[StateFilter, ...], base_filters: tuple[Filter, ...]) -> Query:
    """Return the query whose rows make up Ray's total. It has only the filters that Ray applies before it counts."""
    early = tuple(each for each in state_filters if each.column.name in TASK_SOURCE_FILTERS)
    return Query("tasks", filters=base_filters + index_filters(TASKS, early))


async def with_profiles(view: SessionView, tasks: list[Row]) -> AsyncIterator[tuple[list[Row], list[Row]]]:
    """Yield the tasks in groups, each group with the profile events of its tasks. `tasks` must be sorted by id.

    A task may have any number of profile events, so a group is halved until its events fit into the memory limit. Of a
    single task, only the first events up to the limit are read. (Ray keeps a thousand spans per task.)
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
    """Return filters that select the profile events of these tasks. `tasks` must be sorted by id.

    A range of ids is the cheapest filter. If the range has many events of other tasks, the ids are listed, too.
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
