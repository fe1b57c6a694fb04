"""Ray's summaries: counts of tasks, actors and objects by name and state, or by lineage."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import UsageError
from rayhistory.index.query.lineage import read_lineage
from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.http.response_cache import response_cache_of
from rayhistory.server.http.responses import state_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.ray_api.nested_summary import nested_summaries
from rayhistory.server.ray_api.state_options import StateFilter, index_filters, parse_filters
from rayhistory.server.ray_api.state_schema import ACTORS, NO_OBJECTS, OBJECTS, TASKS
from rayhistory.server.ray_api.task_queries import NO_DRIVERS, count_tasks
from rayhistory.server.view import SessionView

_MAX_NAMES = 10_000
"""Maximum number of names in a summary. Ray summarizes at most 10,000 tasks, so it never has more."""
_MAX_GROUPS = 10_000
"""Maximum number of groups of name, type and state. If there are more, the most frequent names are selected first."""
_GROUPED_BY_NAME_SINCE = (2, 57)
"""First version of Ray that groups tasks by name. Earlier versions group them by function."""
_NAMES_TRUNCATED = f"Only the {_MAX_NAMES:,} most frequent names are listed. The totals count all tasks."
_CLASSES_TRUNCATED = (
    f"Only the {_MAX_GROUPS:,} most frequent classes and states are listed. The totals count all actors."
)
_TASKS_TRUNCATED = "Not every task is listed, because there are too many. The counts include all tasks."


async def summarize_tasks(request: Request, view: SessionView) -> Response:
    summary_by = request.query_params.get("summary_by") or "func_name"
    if summary_by not in ("func_name", "task_name", "lineage"):
        raise UsageError('summary_by must be one of "func_name", "task_name", or "lineage".')
    state_filters = parse_filters(request.query_params, TASKS)
    filters = index_filters(TASKS, state_filters)
    if summary_by == "lineage":
        await view.index.prefetch(Query("tasks", ("task_id",), filters), "actors")
        async with response_cache_of(request).large_response_slot(view.index.manifest.counts.tasks):
            return await _by_lineage(view, state_filters, (NO_DRIVERS, *filters))
    return await _by_name(view, state_filters, (NO_DRIVERS, *filters))


async def _by_name(view: SessionView, state_filters: tuple[StateFilter, ...], filters: tuple[Filter, ...]) -> Response:
    name_column = "func_or_class_name" if view.is_before(_GROUPED_BY_NAME_SINCE) else "name"
    groups = await view.index.group(
        Query("tasks", filters=filters, limit=_MAX_GROUPS + 1), (name_column, "type", "state")
    )
    types, warnings = groups, None
    if len(groups) > _MAX_GROUPS:
        names = await view.index.group(Query("tasks", filters=filters, limit=_MAX_NAMES + 1), (name_column,))
        names.sort(key=lambda group: -group["count"])
        name_filters = (*filters, Filter(name_column, "in", [group[name_column] for group in names[:_MAX_NAMES]]))
        groups = await view.index.group(Query("tasks", filters=name_filters), (name_column, "type", "state"))
        types = await view.index.group(Query("tasks", filters=filters), ("type",))
        warnings = [_NAMES_TRUNCATED] if len(names) > _MAX_NAMES else None
    summary: dict[str, Row] = {}
    for group in sorted(groups, key=lambda group: (group[name_column], group["type"])):
        name = group[name_column]
        entry = summary.setdefault(name, {"func_or_class_name": name, "type": group["type"], "state_counts": Counter()})
        entry["state_counts"][group["state"]] += group["count"]
    body = {
        "summary": summary,
        **_totals((group["type"], group["count"]) for group in types),
        "summary_by": "func_name",
    }
    filtered = sum(group["count"] for group in types)
    return _summary_response(body, await count_tasks(view, state_filters, (NO_DRIVERS,)), filtered, warnings)


async def _by_lineage(
    view: SessionView, state_filters: tuple[StateFilter, ...], filters: tuple[Filter, ...]
) -> Response:
    tree, types, total = await asyncio.gather(
        read_lineage(view.index, filters),
        view.index.group(Query("tasks", filters=filters), ("type",)),
        count_tasks(view, state_filters, (NO_DRIVERS,)),
    )
    summary = await asyncio.to_thread(nested_summaries, tree.children)
    body = {"summary": summary, **_totals((group["type"], group["count"]) for group in types), "summary_by": "lineage"}
    filtered = sum(group["count"] for group in types)
    return _summary_response(body, total, filtered, None if tree.complete else [_TASKS_TRUNCATED])


def _totals(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    by_type: Counter[str] = Counter()
    for task_type, count in counts:
        by_type[task_type] += count
    return {
        "total_tasks": by_type["NORMAL_TASK"],
        "total_actor_tasks": by_type["ACTOR_TASK"],
        "total_actor_scheduled": by_type["ACTOR_CREATION_TASK"],
    }


async def summarize_actors(request: Request, view: SessionView) -> Response:
    filters = index_filters(ACTORS, parse_filters(request.query_params, ACTORS))
    groups = await view.index.group(Query("actors", filters=filters, limit=_MAX_GROUPS + 1), ("class_name", "state"))
    summary: dict[str, Row] = {}
    for group in sorted(groups[:_MAX_GROUPS], key=lambda group: group["class_name"] or ""):
        name = group["class_name"] or ""
        entry = summary.setdefault(name, {"class_name": name, "state_counts": Counter()})
        entry["state_counts"][group["state"]] += group["count"]
    filtered = await view.index.count(Query("actors", filters=filters))
    total = await view.index.count(Query("actors")) if filters else filtered
    body = {"summary": summary, "total_actors": filtered, "summary_by": "class"}
    return _summary_response(body, total, filtered, [_CLASSES_TRUNCATED] if len(groups) > _MAX_GROUPS else None)


async def summarize_objects(request: Request, view: SessionView) -> Response:
    parse_filters(request.query_params, OBJECTS)
    body = {
        "summary": {}, "total_objects": 0, "total_size_mb": 0.0, "callsite_enabled": True, "summary_by": "callsite",
    }  # fmt: skip
    return _summary_response(body, 0, 0, [NO_OBJECTS])


def _summary_response(
    summary: dict[str, Any], total: int, filtered: int, warnings: list[str] | None = None
) -> Response:
    return state_response({"node_id_to_summary": {"cluster": summary}}, total, filtered, warnings)


ROUTES: list[BaseRoute] = [
    view_route("/api/v0/tasks/summarize", summarize_tasks),
    view_route("/api/v0/actors/summarize", summarize_actors),
    view_route("/api/v0/objects/summarize", summarize_objects),
]
