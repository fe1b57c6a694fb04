"""Endpoints of the dashboard's actor pages."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query.query import Filter, Query
from rayhistory.server.http.json_lists import rest_chunks
from rayhistory.server.http.ray_proxy import is_kuberay_request
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, json_list_response
from rayhistory.server.http.responses import google_style, rest_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.ray_api.dashboard_actors import dashboard_actor, dashboard_actors
from rayhistory.server.view import SessionView


async def actors(request: Request, view: SessionView) -> Response:
    actor_ids = request.query_params.get("ids")
    filters = [Filter("actor_id", "in", actor_ids.split(","))] if actor_ids else []
    await view.index.prefetch(Query("actors", sort=("actor_id",)))
    max_rows = await view.index.max_rows(Query("actors", filters=tuple(filters)), LARGE_RESPONSE_ROWS)
    found = dashboard_actors(request, view, *filters)
    return await json_list_response(request, rest_chunks("All actors fetched.", b'{"actors":{', found, b"}}"), max_rows)


async def actor(request: Request, view: SessionView) -> Response:
    actor_id = request.path_params["actor"]
    detail = google_style(await dashboard_actor(request, view, actor_id))
    if is_kuberay_request(request):
        return rest_response(
            "Actor fetched." if detail else "Actor not found.", {"detail": detail}, result=bool(detail)
        )
    return rest_response("Actor details fetched.", {"detail": detail})


ROUTES: list[BaseRoute] = [
    view_route("/logical/actors", actors),
    view_route("/logical/actors/{actor}", actor),
]
