"""The sessions in the store as JSON."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError
from rayhistory.server.history_api.api_types import SessionList
from rayhistory.server.history_api.visible_sessions import load_session_page
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response


async def list_sessions(request: Request) -> Response:
    try:
        page = await load_session_page(request)
    except RayHistoryError as error:
        return api_error_response(error)
    return json_response(
        SessionList(
            sessions=page.sessions,
            total=page.total,
            next=page.next.url(request.url.path) if page.next else None,
            namespaces=page.filters.namespaces,
            dashboards=page.dashboards,
            unsearched=page.unsearched,
            unindexed=page.unindexed,
        )
    )


ROUTES = [Route("/home.json", list_sessions), Route(f"{HISTORY_API}sessions", list_sessions)]
