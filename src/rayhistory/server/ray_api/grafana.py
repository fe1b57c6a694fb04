"""Links from Ray's dashboard to a Grafana, with the time range of the session."""

import re
from html import escape
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from rayhistory.errors import RayHistoryError
from rayhistory.server.http.error_responses import ray_error_response
from rayhistory.server.http.ray_proxy import is_ray_proxy_request
from rayhistory.server.http.responses import rest_response, text_response
from rayhistory.server.http.view_routes import plain_route, selection_of, view_of, view_route
from rayhistory.server.untrusted_json import nested_dict
from rayhistory.server.view import SessionView
from rayhistory.sessions.catalog import RUNNING

# A relative URL: pages open Grafana below the path of the session, where the time range is added.
_GRAFANA_HOST = "grafana"
_GRAFANA_PAGE = re.compile(r"(d|d-solo)/[\w-]{1,64}(/[\w-]*)?", re.ASCII)
_GRAFANA_DEFAULTS = {
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
    """Return the Grafana settings that the cluster's dashboard reported, with defaults for the rest."""
    if not request.app.state.grafana_url:
        return rest_response("Grafana is not configured (--grafana-url).", {"grafanaHost": "DISABLED"})
    try:
        view = await view_of(request)
        stored = await view.dashboard_response("/api/grafana_health")
    except RayHistoryError as error:
        return ray_error_response(error)
    reported = nested_dict(stored, "data")
    health = _GRAFANA_DEFAULTS | {name: value for name, value in reported.items() if name in _GRAFANA_DEFAULTS}
    return rest_response("Grafana running", {"grafanaHost": _GRAFANA_HOST, "sessionName": view.ref.session, **health})


async def prometheus_health(request: Request) -> Response:
    if request.app.state.grafana_url:
        return rest_response("prometheus running", {})
    return rest_response("Prometheus is not configured (--grafana-url).", {}, result=False)


async def to_grafana(request: Request, view: SessionView) -> Response:
    """Redirect to the same page of Grafana with the time range of the session.

    Frontends request the last minutes before now.
    """
    page = request.path_params["page"].rstrip("/")
    if not request.app.state.grafana_url or not _GRAFANA_PAGE.fullmatch(page):
        return text_response("404: Not Found", 404)
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


ROUTES: list[BaseRoute] = [
    view_route("/grafana/{page:path}", to_grafana, cache=False),
    plain_route("/api/grafana_health", grafana_health),
    plain_route("/api/prometheus_health", prometheus_health),
]
