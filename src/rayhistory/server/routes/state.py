"""Ray's State API: the lists below `/api/v0/`, filtered, sorted and cut in the index."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query import Filter, Query, Row
from rayhistory.server import state_rows, state_schema
from rayhistory.server.answers import parsed, state_answer
from rayhistory.server.redaction import is_browser, masked, masked_text
from rayhistory.server.routes.jobs import job_details
from rayhistory.server.routing import closed_for_pages, get
from rayhistory.server.state_options import Condition, Options, index_filters, list_options
from rayhistory.server.state_schema import Schema
from rayhistory.server.view import SessionView

NO_DRIVERS = Filter("type", "!=", "DRIVER_TASK")

_PORTION = 500
_MANY_SPANS = 100_000
_RUNTIME_ENVS = "/api/v0/runtime_envs"

Shape = Callable[[Row], Row]
Source = Callable[[SessionView], Awaitable[list[Row]]]


async def tasks(request: Request, view: SessionView) -> Response:
    options = list_options(request.query_params, state_schema.TASKS)
    always = (NO_DRIVERS,) if options.exclude_driver else ()
    columns = () if options.detail else state_rows.TASK_COLUMNS
    found, total = await asyncio.gather(
        _page(view, state_schema.TASKS, options, always, columns), task_total(view, options.conditions, always)
    )
    filtered = await _filtered(view, state_schema.TASKS, options, always, len(found))
    if options.detail:
        closed_for_pages(request, found, "start_time_ms", "end_time_ms")
        return state_answer(await _detailed(view, found, mask=is_browser(request)), total, filtered)
    return state_answer([state_rows.task(row) for row in found], total, filtered)


async def task_total(view: SessionView, conditions: tuple[Condition, ...], always: tuple[Filter, ...]) -> int:
    """How many tasks there are for Ray, which filters by some columns before it counts."""
    early = tuple(one for one in conditions if one.column.name in state_schema.TASK_SOURCE_FILTERS)
    return await view.index.count(Query("tasks", filters=always + index_filters(state_schema.TASKS, early)))


def _between(rows: list[Row]) -> tuple[Filter, Filter]:
    """What narrows a table down to the tasks of a page, and to few others."""
    return Filter("task_id", ">=", rows[0]["task_id"]), Filter("task_id", "<=", rows[-1]["task_id"])


async def _detailed(view: SessionView, found: list[Row], *, mask: bool) -> msgspec.Raw:
    profiles = state_rows.by_attempt(await _profiles(view, found))
    return await asyncio.to_thread(_written, found, profiles, mask)


def _written(found: list[Row], profiles: dict[tuple[str, int], list[Row]], mask: bool) -> msgspec.Raw:
    """The details as JSON, written in portions: there are never many of them in memory."""
    portions = []
    for start in range(0, len(found), _PORTION):
        rows = [
            state_rows.task_detail(row, profiles.get((row["task_id"], row["attempt_number"]), []))
            for row in found[start : start + _PORTION]
        ]
        portions.append(msgspec.json.encode(_masked(rows) if mask else rows)[1:-1])
    return msgspec.Raw(b"[" + b",".join(portions) + b"]")


async def _profiles(view: SessionView, found: list[Row]) -> list[Row]:
    """What was profiled in the tasks of a page; when that lies far apart, each task is asked for by name."""
    if not found:
        return []
    filters: tuple[Filter, ...] = _between(found)
    if await view.index.count(Query("profile_events", filters=filters)) > _MANY_SPANS:
        filters += (Filter("task_id", "in", sorted({row["task_id"] for row in found})),)
    return await view.rows("profile_events", *filters, columns=state_rows.PROFILE_COLUMNS, sort=("task_id", "attempt"))


async def _list(schema: Schema, shape: Shape, request: Request, view: SessionView) -> Response:
    """A list that is a table of the index."""
    options = list_options(request.query_params, schema)
    found = await _page(view, schema, options)
    filtered = await _filtered(view, schema, options, (), len(found))
    total = await view.index.count(Query(schema.table)) if options.conditions else filtered
    names = schema.names(detail=options.detail)
    rows = [_only(names, shape(row)) for row in found]
    return state_answer(_for(request, rows), total, filtered)


async def _page(
    view: SessionView,
    schema: Schema,
    options: Options,
    always: tuple[Filter, ...] = (),
    columns: tuple[str, ...] = (),
) -> list[Row]:
    filters = always + index_filters(schema, options.conditions)
    return await view.index.rows(Query(schema.table, columns, filters, schema.sort, options.limit))


async def _filtered(view: SessionView, schema: Schema, options: Options, always: tuple[Filter, ...], shown: int) -> int:
    """How many rows pass the filters; a page that is not full has them all."""
    if shown < options.limit:
        return shown
    return await view.index.count(Query(schema.table, filters=always + index_filters(schema, options.conditions)))


async def _small_list(
    schema: Schema, source: Source, when_empty: str | None, request: Request, view: SessionView
) -> Response:
    """A list that is short enough to be filtered here; the source has it in Ray's order."""
    options = list_options(request.query_params, schema)
    found = await source(view)
    passed = [row for row in found if all(condition.holds(row) for condition in options.conditions)]
    names = schema.names(detail=options.detail)
    rows = [_only(names, row) for row in passed[: options.limit]]
    warnings = [when_empty] if when_empty and not found else None
    return state_answer(_for(request, rows), len(found), len(passed), warnings)


async def _jobs(view: SessionView) -> list[Row]:
    return sorted(await job_details(view), key=lambda job: job["job_id"] or "")


async def _runtime_envs(view: SessionView) -> list[Row]:
    """From the dashboard's last answer, where a collector was told to keep it."""
    kept = await view.rows("snapshots", Filter("uri", "prefix", _RUNTIME_ENVS), sort=("-ns",), limit=1)
    answer = parsed(kept[0]["body"], {}) if kept else {}
    rows: list[Row] = ((answer.get("data") or {}).get("result") or {}).get("result") or []
    return sorted(rows, key=lambda row: -float(row.get("creation_time_ms") or "inf"))


async def _objects(view: SessionView) -> list[Row]:
    """Objects are gone with their cluster, and Ray tells nobody about them."""
    return []


def _only(names: Iterable[str], row: Row) -> Row:
    return {name: row.get(name) for name in names}


def _for(request: Request, rows: list[Row]) -> list[Row]:
    """Browsers do not see the values of environment variables."""
    return _masked(rows) if is_browser(request) else rows


def _masked(rows: list[Row]) -> list[Row]:
    for row in rows:
        _mask(row)
    return rows


def _mask(row: Row) -> None:
    if "runtime_env" in row:
        row["runtime_env"] = masked(row["runtime_env"])
    if "serialized_runtime_env" in row:
        row["serialized_runtime_env"] = masked_text(row["serialized_runtime_env"])
    if info := row.get("runtime_env_info"):
        row["runtime_env_info"] = info | {"serialized_runtime_env": masked_text(info["serialized_runtime_env"])}


ROUTES: list[BaseRoute] = [
    get("/api/v0/tasks", tasks),
    get("/api/v0/actors", partial(_list, state_schema.ACTORS, state_rows.actor)),
    get("/api/v0/nodes", partial(_list, state_schema.NODES, state_rows.node)),
    get("/api/v0/workers", partial(_list, state_schema.WORKERS, state_rows.worker)),
    get("/api/v0/placement_groups", partial(_list, state_schema.PLACEMENT_GROUPS, state_rows.placement_group)),
    get("/api/v0/cluster_events", partial(_list, state_schema.CLUSTER_EVENTS, state_rows.cluster_event)),
    get("/api/v0/jobs", partial(_small_list, state_schema.JOBS, _jobs, None)),
    get(
        "/api/v0/runtime_envs",
        partial(_small_list, state_schema.RUNTIME_ENVS, _runtime_envs, state_schema.NO_RUNTIME_ENVS),
    ),
    get("/api/v0/objects", partial(_small_list, state_schema.OBJECTS, _objects, state_schema.NO_OBJECTS)),
]
