"""Search in all log files of a session."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.search.search_query import parse_search
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.search_api.hit_response import TIME_BUDGET_S, hit_response, wants_stream
from rayhistory.server.search_api.start_search import as_of_selection, start_session_search
from rayhistory.server.view import SessionView


async def search(request: Request, view: SessionView) -> Response:
    query = as_of_selection(request, parse_search(request.query_params))
    budget = None if wants_stream(request) else TIME_BUDGET_S
    return await hit_response(request, await start_session_search(request, view, query, budget))


ROUTES: list[BaseRoute] = [
    view_route(path, search, cache=False, on_error=api_error_response)
    for path in ("/api/history/search", "/search.json")
]
