"""All clusters, running or gone, as JSON."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError
from rayhistory.server.history_api.api_types import ClusterList
from rayhistory.server.http.admission import admission_of
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.live_sessions import live_of


async def list_clusters(request: Request) -> Response:
    live = live_of(request)
    try:
        entries = await admission_of(request).filter_visible(request, await resolver_of(request).catalog.entries())
        clusters = await live.clusters(request, entries)
    except RayHistoryError as error:
        return api_error_response(error)
    return json_response(ClusterList(clusters, live.discovery.problem if live.discovery else None))


ROUTES = [Route(f"{HISTORY_API}clusters", list_clusters)]
