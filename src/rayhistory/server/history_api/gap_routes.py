"""The gaps of a session as JSON."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.server.history_api.gap_report import read_gaps
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.view import SessionView


async def session_gaps(request: Request, view: SessionView) -> Response:
    return await asyncio.to_thread(json_response, await read_gaps(view))  # it may have thousands of gaps


ROUTES: list[BaseRoute] = [
    view_route("/api/history/gaps", session_gaps, on_error=api_error_response),
    view_route("/gaps.json", session_gaps, on_error=api_error_response),
]
