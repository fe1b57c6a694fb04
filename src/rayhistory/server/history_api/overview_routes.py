"""The overview of a session: start, end, state, and failures over time, for the slider in the bar."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.server.history_api.failure_overview import read_overview, session_start_ms
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.view import SessionView


async def overview(request: Request, view: SessionView) -> Response:
    return json_response(await read_overview(view, await session_start_ms(request, view)))


ROUTES: list[BaseRoute] = [view_route("/api/history/overview", overview, on_error=api_error_response)]
