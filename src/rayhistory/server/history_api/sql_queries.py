"""SQL on the tables of a session, only with --sql: one SELECT, in a process with limits."""

import asyncio
import tempfile

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import (
    AccessDenied,
    DiskFull,
    MethodNotAllowed,
    RayHistoryError,
    SqlDisabled,
    StoreUnavailable,
    UsageError,
)
from rayhistory.index.child_process import child_process
from rayhistory.index.query.sql_process import SqlJob, SqlResult
from rayhistory.index.query.sql_sandbox import SqlLimits, TableSources, check_query, mentioned_tables
from rayhistory.index.service.fair_slots import FairSlots
from rayhistory.server.history_api.api_types import MAX_SQL_ROWS, SqlRequest, SqlRows
from rayhistory.server.http.admission import admission_of, caller_of, visitor_of
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import SQL_API
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of, while_connected
from rayhistory.server.view import SessionView
from rayhistory.settings import Settings

_MAX_BODY_BYTES = 1 << 16
_MAX_RESPONSE_BYTES = 16 << 20
_KILL_AFTER_S = 5.0
"""A process that exceeds the time limit of its query by this much is killed, because DuckDB rarely checks the limit."""


class SqlService:
    """Runs queries of visitors: two at once, and one per visitor, so that a long query does not block others."""

    def __init__(self, settings: Settings) -> None:
        self.enabled = settings.sql
        self._limits = SqlLimits(settings.sql_memory, settings.sql_timeout)
        self._slots = FairSlots("SQL queries")

    async def run(self, view: SessionView, sql: SqlRequest, visitor: str) -> SqlResult:
        await asyncio.to_thread(check_query, sql.query)
        async with self._slots.acquire(visitor):
            sources: TableSources = {}
            for table in mentioned_tables(sql.query, view.index.tables):
                sources[table] = [("", await view.index.read((table,), str))]
            with tempfile.TemporaryDirectory(prefix="rayhistory-sql-") as scratch:
                job = SqlJob(sql.query, sources, self._limits, scratch, sql.limit, _MAX_RESPONSE_BYTES)
                return await self._run_process(job)

    async def _run_process(self, job: SqlJob) -> SqlResult:
        async with child_process("rayhistory.index.query.sql_process") as process:
            try:
                output, _ = await asyncio.wait_for(
                    process.communicate(msgspec.json.encode(job)), job.limits.timeout_s + _KILL_AFTER_S
                )
            except TimeoutError:
                return SqlResult(
                    problem=f"query cancelled after {job.limits.timeout_s:g} s: use a query that reads fewer rows"
                )
        if process.returncode != 0:
            return SqlResult(
                problem="query exceeded its limit of memory or processor time: use a query that reads fewer rows"
            )
        return msgspec.json.decode(output, type=SqlResult)


async def sql(request: Request) -> Response:
    async def respond() -> Response:
        return await _respond(request)

    try:
        if request.method != "POST":
            await resolver_of(request).entry(selection_of(request))
            raise MethodNotAllowed('send the query by POST, as JSON: {"query": "select …"}')
        body = await _read_body(request)
        request.state.sql = _parse_body(body)
        return await while_connected(request, respond())
    except RayHistoryError as error:
        return api_error_response(error)


async def _respond(request: Request) -> Response:
    try:
        service: SqlService = request.app.state.sql
        if is_browser(request):
            raise AccessDenied("SQL is disabled for browsers because columns may contain secrets: use the command line")
        if not service.enabled:
            raise SqlDisabled("SQL is disabled on this server: start it with --sql, or use rayhistory sql on the store")
        admission_of(request).audit.sql_query(visitor_of(request), selection_of(request).path, request.state.sql.query)
        result = await service.run(await view_of(request), request.state.sql, caller_of(request))
    except RayHistoryError as error:
        return api_error_response(error)
    if result.unreadable:
        return api_error_response(
            StoreUnavailable(f"a table was evicted from the cache while it was read, try again: {result.problem}")
        )
    if result.disk_full:
        return api_error_response(DiskFull())
    if result.problem:
        return api_error_response(UsageError(result.problem))
    return json_response(SqlRows(result.columns, result.rows, result.complete))


async def _read_body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise UsageError(f"request body is larger than {_MAX_BODY_BYTES >> 10} KiB: use a shorter query")
    return body


def _parse_body(body: bytes) -> SqlRequest:
    try:
        parsed = msgspec.json.decode(body, type=SqlRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f'invalid body: {error}; send {{"query": "select …"}}') from None
    if not 1 <= parsed.limit <= MAX_SQL_ROWS:
        raise UsageError(f"limit={parsed.limit}: use 1 to {MAX_SQL_ROWS}")
    return parsed


ROUTES: list[BaseRoute] = [plain_route(SQL_API, sql, ("GET", "POST"))]
