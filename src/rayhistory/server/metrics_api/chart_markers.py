"""Markers on all charts: failures, deaths of nodes, and starts and ends of jobs."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query.query import Filter, Row
from rayhistory.server.history_api.failure_overview import read_overview, session_start_ms
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.metrics_api.chart_types import ChartMarker, ChartMarkers
from rayhistory.server.view import SessionView
from rayhistory.web import FailureMarker

_MAX_ROWS = 200
_MAX_MARKERS = 500
_MAX_NAME = 80


async def chart_markers(request: Request, view: SessionView) -> Response:
    overview = await read_overview(view, await session_start_ms(request, view))
    dead = (Filter("state", "=", "DEAD"), Filter("closed_by_history", "=", False))
    nodes = await view.rows("nodes", *dead, sort=("end_time_ms",), limit=_MAX_ROWS)
    jobs = await view.rows("jobs", sort=("start_time",), limit=_MAX_ROWS)
    markers = [
        *(_failure(each) for each in overview.failures),
        *_node_deaths(nodes),
        *_job_limits(jobs),
    ]
    return json_response(ChartMarkers(sorted(markers[:_MAX_MARKERS], key=lambda each: each.at_ms), len(markers)))


def _failure(marker: FailureMarker) -> ChartMarker:
    counts = ((marker.tasks, "task", "failed"), (marker.actors, "actor", "died"), (marker.jobs, "job", "failed"))
    text = ", ".join(f"{count} {noun}{'s' if count > 1 else ''} {verb}" for count, noun, verb in counts if count)
    return ChartMarker(marker.at_ms, "failure", text)


def _node_deaths(nodes: list[Row]) -> Iterator[ChartMarker]:
    for node in nodes:
        if node["end_time_ms"]:
            yield ChartMarker(node["end_time_ms"], "node_died", f"Node {node['node_ip'] or node['node_id']} died")


def _job_limits(jobs: list[Row]) -> Iterator[ChartMarker]:
    for job in jobs:
        name = str(job["submission_id"] or job["job_id"] or "")[:_MAX_NAME]
        if job["start_time"]:
            yield ChartMarker(job["start_time"], "job_started", f"Job {name} started")
        if job["end_time"] and job["status"] != "FAILED":
            yield ChartMarker(job["end_time"], "job_ended", f"Job {name}: {job['status']}")


ROUTES: list[BaseRoute] = [view_route("/api/history/chart_markers", chart_markers, on_error=api_error_response)]
