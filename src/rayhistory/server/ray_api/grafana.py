"""Grafana for Ray's frontend: our own charts of stored metrics, or a configured Grafana (`--grafana-url`)."""

import re
from html import escape
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from rayhistory import __version__, web
from rayhistory.errors import RayHistoryError
from rayhistory.server.http.error_responses import ray_error_response
from rayhistory.server.http.message_page import error_page, page_response
from rayhistory.server.http.ray_proxy import is_ray_proxy_request
from rayhistory.server.http.responses import rest_response, text_response
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of
from rayhistory.server.untrusted_json import nested_dict
from rayhistory.server.view import SessionView
from rayhistory.sessions.catalog import RUNNING

# A relative URL: pages open Grafana below the path of the session.
_GRAFANA_HOST = "grafana"
_GRAFANA_PAGE = re.compile(r"(?P<kind>d|d-solo)/(?P<uid>[\w-]{1,64})(/[\w-]*)?", re.ASCII)
_STATIC_FILES = StaticFiles(directory=web.STATIC_DIR)
_DEFAULTS = {
    "grafanaOrgId": "1",
    "dashboardUids": {
        "default": "rayDefaultDashboard",
        "serve": "rayServeDashboard",
        "serveDeployment": "rayServeDeploymentDashboard",
        "data": "rayDataDashboard",
    },
    "dashboardDatasource": "Prometheus",
    "grafanaClusterFilter": None,
}


async def grafana_health(request: Request) -> Response:
    """Return the settings of the session's charts: for the configured Grafana, else for our own pages."""
    try:
        if request.app.state.grafana_url:
            view = await view_of(request)
            reported = nested_dict(await view.dashboard_response("/api/grafana_health"), "data")
            session = view.ref.session
            health = _DEFAULTS | {name: value for name, value in reported.items() if name in _DEFAULTS}
        else:
            session = (await resolver_of(request).entry(selection_of(request))).ref.session
            dashboards = await resolver_of(request).dashboards(selection_of(request))
            health = _DEFAULTS | {"dashboardUids": dashboards.uids()}
    except RayHistoryError as error:
        return ray_error_response(error)
    return rest_response("Grafana running", {"grafanaHost": _GRAFANA_HOST, "sessionName": session, **health})


async def prometheus_health(request: Request) -> Response:
    """Report that Prometheus is running, because the server itself evaluates queries."""
    return rest_response("prometheus running", {})


async def dashboard_page(request: Request) -> Response:
    """Serve a page of Grafana: of the configured Grafana, else our own."""
    page = request.path_params["page"].rstrip("/")
    found = _GRAFANA_PAGE.fullmatch(page)
    if found is None:
        return text_response("404: Not Found", 404)
    try:
        if request.app.state.grafana_url:
            return to_grafana(request, page, await view_of(request))
        entry = await resolver_of(request).entry(selection_of(request))
        dashboard = (await resolver_of(request).dashboards(selection_of(request))).get(found["uid"])
    except RayHistoryError as error:
        return error_page(error)
    is_running = resolver_of(request).catalog.state(entry) == RUNNING and selection_of(request).as_of_ms is None
    text = web.render_charts(
        cluster=entry.ref.cluster,
        uid=dashboard.uid,
        title=dashboard.title,
        solo=found["kind"] == "d-solo",
        running=is_running,
        version=__version__,
    )
    return page_response(text)


def to_grafana(request: Request, page: str, view: SessionView) -> Response:
    """Redirect to the same page of Grafana with the time range of the session.

    Frontends request the minutes before now. An ended session has no data for these.
    """
    params = dict(request.query_params)
    first, last = view.index.manifest.first_ns, selection_of(request).as_of_ms or view.last_ms
    if first and not params.get("from", "").isdecimal():
        params["from"] = str(first // 1_000_000)
    if view.state == RUNNING and selection_of(request).as_of_ms is None:
        params["to"] = params.get("to", "now")
    else:
        params.pop("refresh", None)
        if not params.get("to", "").isdecimal():
            params["to"] = str(last)
    url = f"{request.app.state.grafana_url}/{page}?{urlencode(params)}"
    if is_ray_proxy_request(request):  # its proxy follows redirects itself, so Grafana's page would get the wrong URL
        return HTMLResponse(f'<meta http-equiv="refresh" content="0; url={escape(url)}">')
    return RedirectResponse(url, 302)


async def asset(request: Request) -> Response:
    """Serve a static file of our pages below the session, too, because Ray's proxy forwards no other path."""
    try:
        return await _STATIC_FILES.get_response(request.path_params["name"], request.scope)
    except HTTPException:
        return text_response("404: Not Found", 404)


ROUTES: list[BaseRoute] = [
    plain_route("/assets/{name}", asset),
    plain_route("/grafana/{page:path}", dashboard_page),
    plain_route("/api/grafana_health", grafana_health),
    plain_route("/api/prometheus_health", prometheus_health),
]
