"""Search in all log files of a session."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery, parse_search
from rayhistory.server.history_api.hit_response import TIME_BUDGET_S, hit_response, wants_stream
from rayhistory.server.http.admission import caller_of
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.view_routes import resolver_of, selection_of, view_route
from rayhistory.server.logs.search_scope import find_scope
from rayhistory.server.logs.session_search import SessionSearch
from rayhistory.server.view import SessionView


async def search(request: Request, view: SessionView) -> Response:
    query = as_of_selection(request, parse_search(request.query_params))
    budget = None if wants_stream(request) else TIME_BUDGET_S
    return await hit_response(request, await start_search(request, view, query, budget))


def as_of_selection(request: Request, query: SearchQuery) -> SearchQuery:
    """As of a point in time, there are no later lines."""
    as_of = selection_of(request).as_of_ms
    return query if as_of is None else msgspec.structs.replace(query, to_ms=min(as_of + 1, query.to_ms or as_of + 1))


async def start_search(
    request: Request, view: SessionView, query: SearchQuery, time_budget_s: float | None
) -> SessionSearch:
    scanner: Scanner = request.app.state.scanner
    scan = Scan(
        scanner, resolver_of(request).search_logs(view.ref), query, scope=await find_scope(view, query),
        visitor=caller_of(request), time_budget_s=time_budget_s,
    )  # fmt: skip
    return SessionSearch(view, scan)


ROUTES: list[BaseRoute] = [view_route("/api/history/search", search, cache=False, on_error=api_error_response)]
