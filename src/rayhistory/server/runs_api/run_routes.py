"""Runs across sessions, as JSON and CSV."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError
from rayhistory.runs.run_groups import RunGroup
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.runs_api.csv_rows import csv_response
from rayhistory.server.runs_api.run_listing import run_listing_of
from rayhistory.server.runs_api.run_query import parse_run_filters
from rayhistory.server.runs_api.run_types import RunList

_LIST_COLUMNS = (
    "key", "namespace", "kind", "name", "runs", "last_status", "last_started_ms", "last_duration_ms", "success_rate",
    "p50_ms", "p95_ms", "regression_ratio", "last_failure", "last_failure_new", "cpu_hours", "gpu_hours", "idle_share",
    "cost",
)  # fmt: skip
_RUN_COLUMNS = ("session", "job", "status", "started_ms", "duration_ms", "regression", "ray_version", "headline")

Handler = Callable[[Request], Awaitable[Response]]


def _api(handler: Handler) -> Handler:
    async def call(request: Request) -> Response:
        try:
            return await handler(request)
        except RayHistoryError as error:
            return api_error_response(error)

    return call


async def list_runs(request: Request) -> Response:
    page = await run_listing_of(request).page(request, parse_run_filters(request.query_params))
    return json_response(
        RunList(
            runs=page.groups,
            total=page.total,
            next=page.next.url(request.url.path) if page.next else None,
            namespaces=page.filters.namespaces,
            unsummarized=page.visible.unsummarized,
            quarantined=page.visible.rows.quarantined,
            unlisted=page.visible.rows.unlisted,
        )
    )


async def runs_csv(request: Request) -> Response:
    page = await run_listing_of(request).page(request, parse_run_filters(request.query_params))
    return csv_response(_LIST_COLUMNS, map(_list_row, page.all_groups), "runs")


def _list_row(group: RunGroup) -> tuple[object, ...]:
    newest, failure = group.last[0], group.last_failure
    return (
        group.key, group.namespace, group.kind, group.name, group.runs, newest.status, newest.started_ms,
        newest.duration_ms, group.success_rate, group.p50_ms, group.p95_ms,
        group.regression.ratio if group.regression else None, failure.headline if failure else None,
        failure.new if failure else None, group.cpu_hours, group.gpu_hours, group.idle_share, group.cost,
    )  # fmt: skip


async def run_group(request: Request) -> Response:
    filters = parse_run_filters(request.query_params)
    return json_response(await run_listing_of(request).details(request, request.path_params["key"], filters.since_ms))


async def run_group_csv(request: Request) -> Response:
    filters = parse_run_filters(request.query_params)
    found = await run_listing_of(request).details(request, request.path_params["key"], filters.since_ms)
    rows = ([getattr(run, column) for column in _RUN_COLUMNS] for run in found.runs)
    return csv_response(_RUN_COLUMNS, rows, f"runs-{found.group.key}")


ROUTES = [
    Route(f"{HISTORY_API}runs", _api(list_runs)),
    Route(f"{HISTORY_API}runs/{{key}}", _api(run_group)),
    Route("/runs.json", _api(list_runs)),
    Route("/runs.csv", _api(runs_csv)),
    Route("/runs/{key}.json", _api(run_group)),
    Route("/runs/{key}.csv", _api(run_group_csv)),
]
