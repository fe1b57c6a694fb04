"""Search in all log files of a session: one page as JSON, or hits as they are found, as NDJSON."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from rayhistory.errors import RayHistoryError
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery, encode_cursor, parse_search
from rayhistory.search.unit_search import FoundLine
from rayhistory.server.history_api.api_types import LogHit, LogHits, SearchEnd, SearchProgress
from rayhistory.server.http.admission import caller_of
from rayhistory.server.http.error_responses import api_error_response, error_body
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import resolver_of, selection_of, view_route, while_connected
from rayhistory.server.logs.line_owners import NOBODY, find_owners
from rayhistory.server.logs.search_scope import find_scope
from rayhistory.server.view import SessionView

NDJSON = "application/x-ndjson"
_TIME_BUDGET_S = 20.0


async def search(request: Request, view: SessionView) -> Response:
    query = search_query_of(request)
    if NDJSON in request.headers.get("accept", ""):
        scan = await start_scan(request, view, query)
        return StreamingResponse(_stream(view, scan), headers={"Cache-Control": "no-store"}, media_type=NDJSON)

    async def respond() -> Response:
        return json_response(await search_page(request, view, query))

    return await while_connected(request, respond())


def search_query_of(request: Request, also: tuple[str, ...] = ()) -> SearchQuery:
    """Parse the search of a request. As of a point in time, there are no later lines."""
    query = parse_search(request.query_params, also)
    as_of = selection_of(request).as_of_ms
    if as_of is None:
        return query
    return msgspec.structs.replace(query, to_ms=min(as_of + 1, query.to_ms or as_of + 1))


async def start_scan(
    request: Request, view: SessionView, query: SearchQuery, time_budget_s: float | None = None
) -> Scan:
    scanner: Scanner = request.app.state.scanner
    return Scan(
        scanner, resolver_of(request).search_logs(view.ref), query, scope=await find_scope(view, query),
        visitor=caller_of(request), time_budget_s=time_budget_s,
    )  # fmt: skip


async def search_page(request: Request, view: SessionView, query: SearchQuery) -> LogHits:
    """Return one page of hits. After 20 s it ends with what it has, and a cursor."""
    scan = await start_scan(request, view, query, _TIME_BUDGET_S)
    hits = [hit async for lines in scan.lines() for hit in await log_hits(view, lines)]
    return LogHits(hits, _next(scan), scan.complete, scan.scanned_bytes, scan.total)


async def log_hits(view: SessionView, lines: list[FoundLine]) -> list[LogHit]:
    """Add to each line its task, its actor and its address."""
    owners = await find_owners(view, [(line.node, line.path, line.offset) for line in lines])
    hits = []
    for line in lines:
        owner = owners.get((line.node, line.path, line.offset), NOBODY)
        hits.append(
            LogHit(
                node_id=line.node, file=line.path, line=line.line, offset=line.offset, text=line.text,
                matches=line.matches, at_ms=line.at_ms, task_id=owner.task_id, attempt=owner.attempt,
                actor_id=owner.actor_id, url=line_url(view.ref.url, line), before=line.before, after=line.after,
                cut=line.cut or msgspec.UNSET, approximate=line.approximate or msgspec.UNSET,
            )
        )  # fmt: skip
    return hits


def line_url(session_url: str, line: FoundLine) -> str:
    anchor = f"L{line.line}" if line.line is not None else f"B{line.offset}"
    return f"{session_url}logs/{quote(line.node, safe='')}/{quote(line.path)}#{anchor}"


async def _stream(view: SessionView, scan: Scan) -> AsyncIterator[bytes]:
    """Yield one JSON object per line: hits, progress, and at the end a summary or the error that ended the search."""
    try:
        async for lines in scan.lines():
            for hit in await log_hits(view, lines):
                yield msgspec.json.encode(hit) + b"\n"
            progress = SearchProgress(scan.scanned_bytes, scan.total_bytes, scan.count)
            yield msgspec.json.encode({"progress": progress}) + b"\n"
    except RayHistoryError as error:
        yield msgspec.json.encode({"error": error_body(error)}) + b"\n"
    else:
        yield msgspec.json.encode(SearchEnd(_next(scan), scan.complete, scan.scanned_bytes, scan.total)) + b"\n"


def _next(scan: Scan) -> str | None:
    return encode_cursor(scan.next) if scan.next else None


ROUTES: list[BaseRoute] = [view_route("/api/history/search", search, cache=False, on_error=api_error_response)]
