"""Rows of a session's tables, with any columns, filters and order, in pages or as files."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import AccessDenied, UsageError
from rayhistory.index.query import query_params
from rayhistory.index.query.query import Query, Row
from rayhistory.masking import MASK, mask_env_vars_json
from rayhistory.server.http.admission import caller_of
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.list_params import parse_flag
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, ChunkedJsonResponse
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.row_files import RowFiles
from rayhistory.server.view import SessionView

_MASKED_COLUMNS = {"runtime_env", "body"}
_MAX_PAGE_BYTES = 16 << 20
_PARQUET_PARAMETERS = {"columns", "where", "sort", "limit"}
_PARAMETERS = _PARQUET_PARAMETERS | {"cursor", "count"}


async def rows(request: Request, view: SessionView) -> Response:
    params = request.query_params
    _check_parameters(request, _PARAMETERS)
    query = query_params.parse_query(
        request.path_params["table"],
        columns=params.get("columns", ""),
        where=params.getlist("where"),
        sort=params.get("sort", ""),
        limit=params.get("limit", query_params.DEFAULT_LIMIT),
        cursor=params.get("cursor", ""),
    )
    if is_browser(request):
        _reject_masked_columns(query)
    if query.table == "snapshots":  # a single body may be megabytes
        query = await view.index.limit_to_bytes(query, _MAX_PAGE_BYTES)
    max_rows = await view.index.max_rows(query, LARGE_RESPONSE_ROWS)
    await view.index.prefetch(query)
    chunks = _chunks(view, query, with_total=params.get("count") == "1", mask=is_browser(request))
    return ChunkedJsonResponse(chunks, max_rows)


async def rows_as_parquet(request: Request, view: SessionView) -> Response:
    params = request.query_params
    _check_parameters(request, _PARQUET_PARAMETERS)
    query = query_params.parse_unlimited_query(
        request.path_params["table"],
        columns=params.get("columns", ""),
        where=params.getlist("where"),
        sort=params.get("sort", ""),
        limit=params.get("limit", ""),
    )
    if is_browser(request):
        _reject_masked_columns(query)
        if not query.columns or _MASKED_COLUMNS & set(query.columns):
            raise UsageError("columns may contain secrets: list the columns you need, without runtime_env and body")
    return await _files_of(request).parquet(view, query, caller_of(request))


async def table_as_archive(request: Request, view: SessionView) -> Response:
    _check_parameters(request, {"superseded"})
    if is_browser(request):
        raise AccessDenied(
            "columns may contain secrets: use the .parquet file with a list of columns, or the command line"
        )
    with_superseded = parse_flag(request.query_params, "superseded")
    table = request.path_params["table"]
    return await _files_of(request).archive(view, table, caller_of(request), with_superseded=with_superseded)


def _files_of(request: Request) -> RowFiles:
    files: RowFiles = request.app.state.row_files
    return files


def _check_parameters(request: Request, allowed: set[str]) -> None:
    if unknown := set(request.query_params) - allowed:
        raise UsageError(f"unknown parameters {', '.join(sorted(unknown))}: use {', '.join(sorted(allowed))}")


async def _chunks(view: SessionView, query: Query, *, with_total: bool, mask: bool) -> AsyncIterator[bytes]:
    returned, last, prefix = 0, None, b'{"rows":['
    async for rows in view.index.batches(query.with_order()):
        returned, last = returned + len(rows), rows[-1]
        shown = await asyncio.to_thread(_encode, rows, query.columns, mask=mask)  # masking takes long
        rows.clear()
        yield prefix + shown[1:-1]
        prefix = b","
    next_cursor = query_params.cursor_after(query, last) if last and returned == query.limit else None
    total = {"total": await view.index.count(query_params.first_page(query))} if with_total else {}
    yield (b"" if returned else prefix) + b"]," + msgspec.json.encode({"next": next_cursor, **total})[1:]


def _encode(rows: list[Row], columns: tuple[str, ...], *, mask: bool) -> bytes:
    return msgspec.json.encode([_select_columns(row, columns, mask=mask) for row in rows])


def _reject_masked_columns(query: Query) -> None:
    """Raise UsageError for a sort or filter on a masked column, because the result could reveal its values."""
    used = {name.lstrip("-") for name in query.sort} | query.filter_columns
    if masked := sorted(used & _MASKED_COLUMNS):
        raise UsageError(
            f"{' and '.join(masked)} may contain secrets and is masked in browsers: remove it from sort and where, or "
            "use the command line"
        )


def _select_columns(row: Row, columns: tuple[str, ...], *, mask: bool) -> Row:
    """Select the requested columns, and mask the values of environment variables for browsers."""
    shown = {name: row[name] for name in columns} if columns else row
    if mask:
        if "runtime_env" in shown:
            shown["runtime_env"] = mask_env_vars_json(shown["runtime_env"])
        if "env_vars" in (shown.get("body") or ""):
            shown["body"] = MASK
    return shown


ROUTES: list[BaseRoute] = [
    view_route("/api/history/rows/{table}.parquet", rows_as_parquet, cache=False, on_error=api_error_response),
    view_route("/api/history/rows/{table}.zip", table_as_archive, cache=False, on_error=api_error_response),
    view_route("/api/history/rows/{table}", rows, on_error=api_error_response),
]
