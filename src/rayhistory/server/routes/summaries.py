"""Ray's summaries: how many tasks, actors and objects there are, by name and state, or as the tree of calls."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import UsageError
from rayhistory.index.lineage import read_tree
from rayhistory.index.query import Filter, Query, Row
from rayhistory.server.answers import state_answer
from rayhistory.server.lineage import nodes
from rayhistory.server.routes.state import NO_DRIVERS, task_total
from rayhistory.server.routing import get
from rayhistory.server.state_options import Condition, conditions, index_filters
from rayhistory.server.state_schema import ACTORS, NO_OBJECTS, OBJECTS, TASKS
from rayhistory.server.view import SessionView

_MOST_NAMES = 10_000
"""As many as Ray can know of: it looks at no more tasks."""
_MOST_GROUPS = 10_000
"""Names, by type and state; of more, the names are chosen first."""
_NOT_ALL_NAMES = "Not every name is listed, because there are too many to show: the most frequent are."
_NOT_ALL = "Not every task is listed, because there are too many to show. The counts are those of all tasks."


async def summarize_tasks(request: Request, view: SessionView) -> Response:
    by = request.query_params.get("summary_by") or "func_name"
    if by not in ("func_name", "task_name", "lineage"):
        raise UsageError('summary_by must be one of "func_name", "task_name", or "lineage".')
    given = conditions(request.query_params, TASKS)
    filters = index_filters(TASKS, given)
    if by == "lineage":
        await view.index.fetched(Query("tasks", ("task_id",), filters), "actors")
        async with request.app.state.answers.place(view.index.manifest.counts.tasks):
            return await _by_lineage(view, given, (NO_DRIVERS, *filters))
    return await _by_name(view, given, (NO_DRIVERS, *filters))


async def _by_name(view: SessionView, given: tuple[Condition, ...], filters: tuple[Filter, ...]) -> Response:
    shown = "func_or_class_name" if _grouped_by_function(view.index.manifest.ray_version) else "name"
    groups = await view.index.group(Query("tasks", filters=filters, limit=_MOST_GROUPS + 1), (shown, "type", "state"))
    types, warnings = groups, None
    if len(groups) > _MOST_GROUPS:
        names = await view.index.group(Query("tasks", filters=filters, limit=_MOST_NAMES + 1), (shown,))
        names.sort(key=lambda one: -one["count"])
        chosen = (*filters, Filter(shown, "in", [one[shown] for one in names[:_MOST_NAMES]]))
        groups = await view.index.group(Query("tasks", filters=chosen), (shown, "type", "state"))
        types = await view.index.group(Query("tasks", filters=filters), ("type",))
        warnings = [_NOT_ALL_NAMES] if len(names) > _MOST_NAMES else None
    summary: dict[str, Row] = {}
    for group in sorted(groups, key=lambda one: (one[shown], one["type"])):
        name = group[shown]
        of_name = summary.setdefault(
            name, {"func_or_class_name": name, "type": group["type"], "state_counts": Counter()}
        )
        of_name["state_counts"][group["state"]] += group["count"]
    body = {"summary": summary, **_totals((one["type"], one["count"]) for one in types), "summary_by": "func_name"}
    filtered = sum(one["count"] for one in types)
    return _answer(body, await task_total(view, given, (NO_DRIVERS,)), filtered, warnings)


def _grouped_by_function(ray_version: str | None) -> bool:
    """Until 2.56 Ray put tasks together by their function, whatever name they were given."""
    version = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", ray_version or "", re.ASCII)
    return version is not None and (int(version[1]), int(version[2])) < (2, 57)


async def _by_lineage(view: SessionView, given: tuple[Condition, ...], filters: tuple[Filter, ...]) -> Response:
    tree, types, total = await asyncio.gather(
        read_tree(view.index, filters),
        view.index.group(Query("tasks", filters=filters), ("type",)),
        task_total(view, given, (NO_DRIVERS,)),
    )
    summary = await asyncio.to_thread(nodes, tree.children)
    body = {"summary": summary, **_totals((one["type"], one["count"]) for one in types), "summary_by": "lineage"}
    filtered = sum(one["count"] for one in types)
    return _answer(body, total, filtered, None if tree.complete else [_NOT_ALL])


def _totals(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    by_type: Counter[str] = Counter()
    for kind, count in counted:
        by_type[kind] += count
    return {
        "total_tasks": by_type["NORMAL_TASK"],
        "total_actor_tasks": by_type["ACTOR_TASK"],
        "total_actor_scheduled": by_type["ACTOR_CREATION_TASK"],
    }


async def summarize_actors(request: Request, view: SessionView) -> Response:
    filters = index_filters(ACTORS, conditions(request.query_params, ACTORS))
    groups = await view.index.group(Query("actors", filters=filters), ("class_name", "state"))
    summary: dict[str, Row] = {}
    for group in sorted(groups, key=lambda one: one["class_name"] or ""):
        name = group["class_name"] or ""
        of_class = summary.setdefault(name, {"class_name": name, "state_counts": Counter()})
        of_class["state_counts"][group["state"]] += group["count"]
    filtered = sum(group["count"] for group in groups)
    total = await view.index.count(Query("actors")) if filters else filtered
    return _answer({"summary": summary, "total_actors": filtered, "summary_by": "class"}, total, filtered)


async def summarize_objects(request: Request, view: SessionView) -> Response:
    conditions(request.query_params, OBJECTS)
    body = {
        "summary": {}, "total_objects": 0, "total_size_mb": 0.0, "callsite_enabled": True, "summary_by": "callsite",
    }  # fmt: skip
    return _answer(body, 0, 0, [NO_OBJECTS])


def _answer(summary: dict[str, Any], total: int, filtered: int, warnings: list[str] | None = None) -> Response:
    return state_answer({"node_id_to_summary": {"cluster": summary}}, total, filtered, warnings)


ROUTES: list[BaseRoute] = [
    get("/api/v0/tasks/summarize", summarize_tasks),
    get("/api/v0/actors/summarize", summarize_actors),
    get("/api/v0/objects/summarize", summarize_objects),
]
