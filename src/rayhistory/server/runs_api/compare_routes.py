"""Compare up to ten sessions, as JSON."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import AccessError, RayHistoryError
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.runs_api.compared_sessions import compare_requested


async def compare_json(request: Request) -> Response:
    try:
        return json_response(await compare_requested(request))
    except (AccessError, RayHistoryError) as error:
        return api_error_response(error)


ROUTES = [Route(f"{HISTORY_API}compare", compare_json), Route("/compare.json", compare_json)]
