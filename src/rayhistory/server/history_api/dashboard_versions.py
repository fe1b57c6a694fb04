"""Installed versions of the Ray Dashboard, and the version that is used for a session."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.server.frontend import VERSION_PARAM, Frontends
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.view import SessionView


async def dashboards(request: Request, view: SessionView) -> Response:
    frontends: Frontends = request.app.state.frontends
    return json_response(
        frontends.describe_choice(view.index.manifest.ray_version, request.query_params.get(VERSION_PARAM))
    )


ROUTES: list[BaseRoute] = [
    view_route("/api/history/dashboards", dashboards, cache=False, on_error=api_error_response),
]
