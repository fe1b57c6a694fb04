"""Ray's State API: the lists below `/api/v0/`, filtered, sorted and limited by the index."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.masking import mask_env_vars, mask_env_vars_json
from rayhistory.server.http.json_lists import encoded_items, json_items
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, json_list_response
from rayhistory.server.http.responses import state_response
from rayhistory.server.http.view_routes import end_open_rows_for_browsers, view_route
from rayhistory.server.logs.task_log_info import infer_log_info
from rayhistory.server.ray_api import state_rows, state_schema
from rayhistory.server.ray_api.job_details import JOBS_ORDER, job_details
from rayhistory.server.ray_api.state_options import ListOptions, index_filters, parse_list_options
from rayhistory.server.ray_api.state_schema import StateSchema
from rayhistory.server.ray_api.task_queries import NO_DRIVERS, counted_query, with_profiles
from rayhistory.server.untrusted_json import decode_json, dicts_in, nested_dict
from rayhistory.server.view import SessionView

_ENCODE_BATCH_ROWS = 500
_RUNTIME_ENVS_PATH = "/api/v0/runtime_envs"

RowShape = Callable[[Row], Row]
BatchEncoder = Callable[[list[Row]], AsyncIterator[bytes]]
"""Encodes a batch of rows as items of a JSON array, in one or more pieces."""


async def tasks(request: Request, view: SessionView) -> Response:
    options = parse_list_options(request.query_params, state_schema.TASKS)
    base_filters = (NO_DRIVERS,) if options.exclude_driver else ()
    columns = () if options.detail else state_rows.TASK_COLUMNS
    encode: BatchEncoder = partial(_encode_detailed, request, view) if options.detail else _encode_plain
    query = _query(state_schema.TASKS, options, base_filters, columns)
    return await _list_response(request, view, query, counted_query(options.filters, base_filters), encode)


async def _encode_plain(rows: list[Row]) -> AsyncIterator[bytes]:
    yield await asyncio.to_thread(lambda: _encode_and_release(rows, lambda: [state_rows.task(row) for row in rows]))


async def _encode_detailed(request: Request, view: SessionView, rows: list[Row]) -> AsyncIterator[bytes]:
    end_open_rows_for_browsers(request, view, rows, "start_time_ms", "end_time_ms")
    await infer_log_info(view, rows)
    newer = state_schema.TASKS.newer_names(view.is_before)
    async for group, profiles in with_profiles(view, rows):
        yield await asyncio.to_thread(_encode_details, group, profiles, newer, is_browser(request))


def _encode_and_release(rows: list[Row], shape: Callable[[], list[Row]]) -> bytes:
    """Encode rows and free their memory, because the client may read slowly."""
    encoded = json_items(shape())
    rows.clear()
    return encoded


def _encode_details(rows: list[Row], profile_rows: list[Row], newer: frozenset[str], mask: bool) -> bytes:
    """Encode tasks with details in batches, so that few large rows are in memory at once. Free the rows."""
    encoded = []
    profiles = state_rows.by_attempt(profile_rows)
    profile_rows.clear()
    for start in range(0, len(rows), _ENCODE_BATCH_ROWS):
        details = [
            _without(newer, state_rows.task_detail(row, profiles.get((row["task_id"], row["attempt_number"]), [])))
            for row in rows[start : start + _ENCODE_BATCH_ROWS]
        ]
        encoded.append(json_items(_mask_rows(details) if mask else details))
    rows.clear()
    return b",".join(encoded)


async def _table_list(schema: StateSchema, shape: RowShape, request: Request, view: SessionView) -> Response:
    """Return one of Ray's lists whose rows are those of one table of the index."""
    options = parse_list_options(request.query_params, schema)
    newer = schema.newer_names(view.is_before)
    names = [name for name in schema.names(detail=options.detail) if name not in newer]

    def shaped(rows: list[Row]) -> list[Row]:
        return _mask_for_browsers(request, [_select(names, shape(row)) for row in rows])

    async def encode(rows: list[Row]) -> AsyncIterator[bytes]:
        yield await asyncio.to_thread(lambda: _encode_and_release(rows, lambda: shaped(rows)))

    return await _list_response(request, view, _query(schema, options), Query(schema.table), encode)


def _query(
    schema: StateSchema, options: ListOptions, base_filters: tuple[Filter, ...] = (), columns: tuple[str, ...] = ()
) -> Query:
    filters = base_filters + index_filters(schema, options.filters)
    return Query(schema.table, columns, filters, schema.sort, options.limit)


async def _list_response(
    request: Request, view: SessionView, query: Query, counted: Query, encode: BatchEncoder
) -> Response:
    """Return the rows of a query in Ray's envelope. `counted` is the query for the total."""
    max_rows = await view.index.max_rows(query, LARGE_RESPONSE_ROWS)
    await view.index.prefetch(query, *([] if query.columns or query.table != "tasks" else ["profile_events"]))
    chunks = _chunks(view, query, counted, encode)
    return await json_list_response(request, chunks, max_rows)


async def _chunks(view: SessionView, query: Query, counted: Query, encode: BatchEncoder) -> AsyncIterator[bytes]:
    before, _ = bytes(state_response([], 0, 0).body).split(b"[]")
    returned, prefix = 0, before + b"["
    async for rows in view.index.batches(query):
        returned += len(rows)
        async for items in encode(rows):
            pending = [prefix + items]
            del items  # a waiting request must not hold its last chunk
            yield pending.pop()
            prefix = b","
    unlimited = Query(query.table, filters=query.filters)
    filtered = returned if returned < (query.limit or 0) else await view.index.count(unlimited)
    total = filtered if query.filters == counted.filters else await view.index.count(counted)
    _, after = bytes(state_response([], total, filtered).body).split(b"[]")
    yield (b"" if returned else prefix) + b"]" + after


async def _jobs_list(request: Request, view: SessionView) -> Response:
    """Return the list of jobs. As in Ray, filters apply to jobs in the shape of Ray's job API."""
    options = parse_list_options(request.query_params, state_schema.JOBS)
    names = state_schema.JOBS.names(detail=options.detail)
    mask = is_browser(request)
    counts = _ListCounts()

    def encode(rows: list[Row]) -> bytes:
        jobs = [job_details(row) for row in rows]
        matching = [job for job in jobs if all(state_filter.matches(job) for state_filter in options.filters)]
        returned = [_select(names, job) for job in matching[: max(0, options.limit - counts.filtered)]]
        counts.total, counts.filtered = counts.total + len(rows), counts.filtered + len(matching)
        return json_items(_mask_rows(returned) if mask else returned)

    async def chunks() -> AsyncIterator[bytes]:
        before, _ = bytes(state_response([], 0, 0).body).split(b"[]")
        yield before + b"["
        async for items in encoded_items(_jobs_by_id(view), encode):
            pending = [items]
            del items
            yield pending.pop()
        _, after = bytes(state_response([], counts.total, counts.filtered).body).split(b"[]")
        yield b"]" + after

    max_rows = await view.index.max_rows(Query("jobs"), LARGE_RESPONSE_ROWS)
    return await json_list_response(request, chunks(), max_rows)


async def _jobs_by_id(view: SessionView) -> AsyncIterator[list[Row]]:
    """Yield jobs in Ray's order: jobs without a job id first."""
    for operator, sort in (("=", JOBS_ORDER), ("!=", ("job_id", *JOBS_ORDER))):
        async for rows in view.batches("jobs", Filter("job_id", operator, None), sort=sort):
            yield rows


class _ListCounts:
    total = 0
    filtered = 0


async def _runtime_envs_list(request: Request, view: SessionView) -> Response:
    """Return runtime environments from the last dashboard response, if the collector was configured to store it."""
    body = await view.last_body(Filter("uri", "prefix", _RUNTIME_ENVS_PATH))
    options = parse_list_options(request.query_params, state_schema.RUNTIME_ENVS)

    def respond() -> Response:
        response = decode_json(body, {})
        rows = sorted(dicts_in(nested_dict(response, "data", "result").get("result")), key=_newest_first)
        matching = [row for row in rows if all(state_filter.matches(row) for state_filter in options.filters)]
        names = state_schema.RUNTIME_ENVS.names(detail=options.detail)
        returned = _mask_for_browsers(request, [_select(names, row) for row in matching[: options.limit]])
        warnings = None if rows else [state_schema.NO_RUNTIME_ENVS]
        return state_response(returned, len(rows), len(matching), warnings)

    return await asyncio.to_thread(respond)


def _newest_first(row: Row) -> float:
    created = row.get("creation_time_ms")
    return -created if created and isinstance(created, int | float) else float("-inf")


async def _objects_list(request: Request, view: SessionView) -> Response:
    """Return an empty list, because Ray exports no events about objects."""
    parse_list_options(request.query_params, state_schema.OBJECTS)
    return state_response([], 0, 0, [state_schema.NO_OBJECTS])


def _select(names: Iterable[str], row: Row) -> Row:
    return {name: row.get(name) for name in names}


def _without(names: Iterable[str], row: Row) -> Row:
    for name in names:
        del row[name]
    return row


def _mask_for_browsers(request: Request, rows: list[Row]) -> list[Row]:
    """Hide the values of environment variables from browsers."""
    return _mask_rows(rows) if is_browser(request) else rows


def _mask_rows(rows: list[Row]) -> list[Row]:
    for row in rows:
        _mask_row(row)
    return rows


def _mask_row(row: Row) -> None:
    if "runtime_env" in row:
        row["runtime_env"] = mask_env_vars(row["runtime_env"])
    if "serialized_runtime_env" in row:
        row["serialized_runtime_env"] = mask_env_vars_json(row["serialized_runtime_env"])
    if info := row.get("runtime_env_info"):
        row["runtime_env_info"] = info | {"serialized_runtime_env": mask_env_vars_json(info["serialized_runtime_env"])}


ROUTES: list[BaseRoute] = [
    view_route("/api/v0/tasks", tasks),
    view_route("/api/v0/actors", partial(_table_list, state_schema.ACTORS, state_rows.actor)),
    view_route("/api/v0/nodes", partial(_table_list, state_schema.NODES, state_rows.node)),
    view_route("/api/v0/workers", partial(_table_list, state_schema.WORKERS, state_rows.worker)),
    view_route(
        "/api/v0/placement_groups", partial(_table_list, state_schema.PLACEMENT_GROUPS, state_rows.placement_group)
    ),
    view_route("/api/v0/cluster_events", partial(_table_list, state_schema.CLUSTER_EVENTS, state_rows.cluster_event)),
    view_route("/api/v0/jobs", _jobs_list),
    view_route("/api/v0/runtime_envs", _runtime_envs_list),
    view_route("/api/v0/objects", _objects_list),
]
