"""Ray's State API: the lists below `/api/v0/`, filtered, sorted and cut in the index."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query import Filter, Query, Row
from rayhistory.server import state_rows, state_schema
from rayhistory.server.answers import inside, objects, parsed, state_answer
from rayhistory.server.kept import FEW, InPieces, answer_in_pieces
from rayhistory.server.redaction import is_browser, masked, masked_text
from rayhistory.server.routes.jobs import job_details
from rayhistory.server.routing import closed_for_pages, get
from rayhistory.server.state_options import Condition, Options, index_filters, list_options
from rayhistory.server.state_schema import Schema
from rayhistory.server.view import SessionView

NO_DRIVERS = Filter("type", "!=", "DRIVER_TASK")

_LONGEST_KEPT = 10_000
"""Longer lists, which Ray does not give, are sent while they are written."""
_PORTION = 500
_FAR_APART = 4
"""So many profiles for each task are read rather than to ask for the tasks by name."""
_RUNTIME_ENVS = "/api/v0/runtime_envs"

Shape = Callable[[Row], Row]
Source = Callable[[SessionView], Awaitable[list[Row]]]
Writer = Callable[[list[Row]], Awaitable[bytes]]


async def tasks(request: Request, view: SessionView) -> Response:
    options = list_options(request.query_params, state_schema.TASKS)
    always = (NO_DRIVERS,) if options.exclude_driver else ()
    columns = () if options.detail else state_rows.TASK_COLUMNS
    written: Writer = partial(_detailed, request, view) if options.detail else _plain
    query = _query(state_schema.TASKS, options, always, columns)
    return await _listed(request, view, query, _for_ray(options.conditions, always), written)


async def task_total(view: SessionView, conditions: tuple[Condition, ...], always: tuple[Filter, ...]) -> int:
    """How many tasks there are for Ray."""
    return await view.index.count(_for_ray(conditions, always))


def _for_ray(conditions: tuple[Condition, ...], always: tuple[Filter, ...]) -> Query:
    """All that Ray counts: it filters by some columns before."""
    early = tuple(one for one in conditions if one.column.name in state_schema.TASK_SOURCE_FILTERS)
    return Query("tasks", filters=always + index_filters(state_schema.TASKS, early))


async def _plain(found: list[Row]) -> bytes:
    return _items([state_rows.task(row) for row in found])


async def _detailed(request: Request, view: SessionView, found: list[Row]) -> bytes:
    closed_for_pages(request, view, found, "start_time_ms", "end_time_ms")
    narrow = await profiles_of(view, found)
    rows = await view.rows("profile_events", *narrow, columns=state_rows.PROFILE_COLUMNS, sort=("task_id", "attempt"))
    return await asyncio.to_thread(_written, found, state_rows.by_attempt(rows), is_browser(request))


def _written(found: list[Row], profiles: dict[tuple[str, int], list[Row]], mask: bool) -> bytes:
    """The details as JSON, written in portions: there are never many of them in memory."""
    portions = []
    for start in range(0, len(found), _PORTION):
        rows = [
            state_rows.task_detail(row, profiles.get((row["task_id"], row["attempt_number"]), []))
            for row in found[start : start + _PORTION]
        ]
        portions.append(_items(_masked(rows) if mask else rows))
    return b",".join(portions)


async def profiles_of(view: SessionView, found: list[Row]) -> tuple[Filter, ...]:
    """What finds all that was profiled in tasks that are sorted by id, and little else.

    Where theirs lie far apart among those of others, each task is asked for by name.
    """
    if not found:
        return (Filter("task_id", "=", None),)
    attempts = [row["attempt_number"] for row in found]
    between = (
        Filter("task_id", ">=", found[0]["task_id"]),
        Filter("task_id", "<=", found[-1]["task_id"]),
        Filter("attempt", ">=", min(attempts)),
        Filter("attempt", "<=", max(attempts)),
    )
    if await view.index.count(Query("profile_events", filters=between)) <= _FAR_APART * len(found):
        return between
    return (*between, Filter("task_id", "in", sorted({row["task_id"] for row in found})))


async def _list(schema: Schema, shape: Shape, request: Request, view: SessionView) -> Response:
    """A list that is a table of the index."""
    options = list_options(request.query_params, schema)
    names = schema.names(detail=options.detail)

    async def written(found: list[Row]) -> bytes:
        return _items(_for(request, [_only(names, shape(row)) for row in found]))

    return await _listed(request, view, _query(schema, options), Query(schema.table), written)


def _query(schema: Schema, options: Options, always: tuple[Filter, ...] = (), columns: tuple[str, ...] = ()) -> Query:
    filters = always + index_filters(schema, options.conditions)
    return Query(schema.table, columns, filters, schema.sort, options.limit)


async def _listed(request: Request, view: SessionView, query: Query, everything: Query, written: Writer) -> Response:
    """The rows of a query in Ray's envelope, as they are written, and how many there are of everything."""
    rows = await view.index.most(query, FEW)
    await view.index.fetched(query, *([] if query.columns or query.table != "tasks" else ["profile_events"]))
    pieces = _pieces(view, query, everything, written)
    if (query.limit or 0) > _LONGEST_KEPT:
        return await answer_in_pieces(request, pieces, rows)
    return InPieces(pieces, rows)


async def _pieces(view: SessionView, query: Query, everything: Query, written: Writer) -> AsyncIterator[bytes]:
    before, _ = bytes(state_answer([], 0, 0).body).split(b"[]")
    found, begin = 0, before + b"["
    async for rows in view.index.portions(query):
        found += len(rows)
        yield begin + await _let_go(rows, written)
        begin = b","
    all_that_pass = Query(query.table, filters=query.filters)
    filtered = found if found < (query.limit or 0) else await view.index.count(all_that_pass)
    total = filtered if query.filters == everything.filters else await view.index.count(everything)
    _, after = bytes(state_answer([], total, filtered).body).split(b"[]")
    yield (b"" if found else begin) + b"]" + after


async def _let_go(rows: list[Row], written: Writer) -> bytes:
    """What is written of rows that nobody needs any more: whoever reads it may be slow."""
    text = await written(rows)
    rows.clear()
    return text


def _items(rows: list[Row]) -> bytes:
    """As JSON, without the brackets."""
    return msgspec.json.encode(rows)[1:-1]


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
    return sorted(objects(inside(answer, "data", "result").get("result")), key=_newest_first)


def _newest_first(row: Row) -> float:
    created = row.get("creation_time_ms")
    return -created if created and isinstance(created, int | float) else float("-inf")


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
