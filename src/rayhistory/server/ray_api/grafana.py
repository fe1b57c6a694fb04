"""In which versions of Ray's dashboard a session can be shown, and the Grafana that its pages link to."""

import re
from html import escape
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from rayhistory.errors import RayHistoryError
from rayhistory.server.answers import json_answer, rest_answer, text_answer
from rayhistory.server.catalogue import RUNNING
from rayhistory.server.frontend import PARAMETER, Frontends
from rayhistory.server.routing import answer_to, get, get_plain, own_answer_to, selection_of, view_of
from rayhistory.server.throughray import through_ray
from rayhistory.server.view import SessionView

# Relative: pages look for Grafana below the session's address, and from there are sent to the session's time.
_HOST = "grafana"
_PAGE = re.compile(r"(d|d-solo)/[\w-]{1,64}(/[\w-]*)?", re.ASCII)
_ABOUT_GRAFANA = {
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


async def dashboards(request: Request, view: SessionView) -> Response:
    frontends: Frontends = request.app.state.frontends
    return json_answer(frontends.choice(view.index.manifest.ray_version, request.query_params.get(PARAMETER)))


async def grafana_health(request: Request) -> Response:
    """What the cluster's own Grafana was called there, as far as its dashboard said so."""
    if not request.app.state.grafana_url:
        return rest_answer("Grafana is not connected to this history.", {"grafanaHost": "DISABLED"})
    try:
        view = await view_of(request)
        kept = await view.snapshot("/api/grafana_health")
    except RayHistoryError as error:
        return answer_to(error)
    said = kept.get("data") if isinstance(kept, dict) else None
    said = said if isinstance(said, dict) else {}
    about = _ABOUT_GRAFANA | {name: value for name, value in said.items() if name in _ABOUT_GRAFANA}
    return rest_answer("Grafana running", {"grafanaHost": _HOST, "sessionName": view.ref.session, **about})


async def prometheus_health(request: Request) -> Response:
    if request.app.state.grafana_url:
        return rest_answer("prometheus running", {})
    return rest_answer("There are no live metrics of a cluster that is gone.", {}, result=False)


async def to_grafana(request: Request, view: SessionView) -> Response:
    """The same page of Grafana, in the session's time: the frontends ask for the last minutes before now."""
    page = request.path_params["page"].rstrip("/")
    if not request.app.state.grafana_url or not _PAGE.fullmatch(page):
        return text_answer("404: Not Found", 404)
    asked = dict(request.query_params)
    first, last = view.index.manifest.first_ns, selection_of(request).as_of_ms or view.last_ms
    if first and not asked.get("from", "").isdecimal():
        asked["from"] = str(first // 1_000_000)
    if view.state == RUNNING and selection_of(request).as_of_ms is None:
        asked["to"] = asked.get("to", "now")
    else:
        asked.pop("refresh", None)
        if not asked.get("to", "").isdecimal():
            asked["to"] = str(last)
    address = f"{request.app.state.grafana_url}/{page}?{urlencode(asked)}"
    if through_ray(request):  # which would follow a redirect, and bring Grafana's page to the wrong address
        return HTMLResponse(f'<meta http-equiv="refresh" content="0; url={escape(address)}">')
    return RedirectResponse(address, 302)


ROUTES: list[BaseRoute] = [
    get("/api/history/dashboards", dashboards, keep=False, failed=own_answer_to),
    get("/grafana/{page:path}", to_grafana, keep=False),
    get_plain("/api/grafana_health", grafana_health),
    get_plain("/api/prometheus_health", prometheus_health),
]
