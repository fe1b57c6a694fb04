"""Search in the log files of all sessions that the visitor may see, newest sessions first."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.search_api.hit_response import TIME_BUDGET_S, hit_response, wants_stream
from rayhistory.server.search_api.start_search import start_sessions_search


async def search(request: Request) -> Response:
    try:
        budget = None if wants_stream(request) else TIME_BUDGET_S
        return await hit_response(request, await start_sessions_search(request, request.query_params, budget))
    except RayHistoryError as error:
        return api_error_response(error)


ROUTES = [Route(f"{HISTORY_API}search", search), Route("/search.json", search)]
