"""Charts of a session: its Grafana dashboards as rows and panels, and the data of each panel."""

import asyncio
import re
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.concurrency import in_thread_to_end
from rayhistory.errors import NotFound, RayHistoryError, UsageError
from rayhistory.lru import LruCache
from rayhistory.metrics.chart_data import ChartData, ChartGap, PanelQuery, panel_data, panel_queries
from rayhistory.metrics.dashboard_model import Dashboard, Panel
from rayhistory.metrics.object_listing import MetricQuery, MetricsGap
from rayhistory.metrics.stored_series import StoredSeries
from rayhistory.metrics.template_variables import (
    VariableChoice,
    interpolate_text,
    known_choices,
    referenced,
    resolve_variables,
    variable_metrics,
)
from rayhistory.metrics.time_ranges import MAX_POINTS, MIN_POINTS, SessionTimes, TimeRange, parse_range
from rayhistory.promql.query_errors import PromqlError
from rayhistory.promql.values import Value
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, while_connected
from rayhistory.server.metrics_api.chart_types import (
    ChartDashboard,
    ChartRow,
    DashboardTitle,
    DashboardTitles,
    PanelInfo,
    VariableOptions,
)
from rayhistory.server.metrics_api.session_metrics import evaluate_query, open_querier, query_cache_of

_DEFAULT_FROM, _DEFAULT_TO, _DEFAULT_POINTS = "now-30m", "now", 300
_VARIABLE_PREFIX = "var-"
_MAX_GAPS = 100
_NODE_CHARACTERS = 12
_CACHED_RESULTS = 64
_NOT_STORED = "metrics of node {node} are not stored: its collector did not run, or an object was removed"
_UNREADABLE = "metrics of node {node} could not be read: the stored object is damaged or missing"


async def list_charts(request: Request) -> Response:
    try:
        found = await resolver_of(request).dashboards(selection_of(request))
        times = await resolver_of(request).metrics_times(selection_of(request)) or SessionTimes(0, 0)
    except RayHistoryError as error:
        return api_error_response(error)
    titles = [DashboardTitle(each.uid, each.title) for each in found.dashboards.values()]
    titles.sort(key=lambda each: each.title)
    return json_response(DashboardTitles(titles, found.from_session, times.first_ms, times.last_ms))


async def get_dashboard(request: Request) -> Response:
    """Return rows, panels, and variables with their options."""
    try:
        definition = await _load_definition(request)
        times = await resolver_of(request).metrics_times(selection_of(request))
        time_range = _parse_time_range(request, times)
        variables = await _resolve_variables(request, definition, time_range)
    except RayHistoryError as error:
        return api_error_response(error)
    return json_response(
        ChartDashboard(
            uid=definition.uid,
            title=definition.title,
            first_ms=times.first_ms if times else 0,
            last_ms=times.last_ms if times else 0,
            variables=[_options(each) for each in variables.values()],
            rows=[
                ChartRow(
                    interpolate_text(row.title, variables),
                    row.collapsed,
                    [_info(each, variables) for each in row.panels],
                )
                for row in definition.rows
            ],
        )
    )


async def get_panel(request: Request) -> Response:
    """Return the series of one panel."""
    return await while_connected(request, _get_panel(request))


async def _get_panel(request: Request) -> Response:
    try:
        definition = await _load_definition(request)
        number = request.path_params["panel"]
        found = definition.panel(int(number)) if number.isdecimal() and len(number) < 10 else None
        if found is None:
            raise NotFound(f"Grafana dashboard {definition.uid} has no panel {number[:20]!r}")
        times = await resolver_of(request).metrics_times(selection_of(request))
        time_range = _parse_time_range(request, times)
        variables = await _resolve_panel_variables(request, definition, found, time_range)
        data = await _load_data(request, found, panel_queries(found, variables, time_range), time_range)
    except RayHistoryError as error:
        return api_error_response(error)
    return await asyncio.to_thread(json_response, data)


async def _load_definition(request: Request) -> Dashboard:
    return (await resolver_of(request).dashboards(selection_of(request))).get(request.path_params["uid"])


def _parse_time_range(request: Request, times: SessionTimes | None) -> TimeRange:
    params = request.query_params
    points = params.get("points") or str(_DEFAULT_POINTS)
    if not re.fullmatch(r"[0-9]{1,9}", points) or not MIN_POINTS <= int(points) <= MAX_POINTS:
        raise UsageError(f"invalid points {points[:40]!r}: use a whole number from {MIN_POINTS} to {MAX_POINTS:,}")
    return parse_range(
        params.get("from") or _DEFAULT_FROM,
        params.get("to") or _DEFAULT_TO,
        times or SessionTimes(0, 0),
        int(points),
    )


def _requested_values(params: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in params:
        if name.startswith(_VARIABLE_PREFIX):
            found.setdefault(name.removeprefix(_VARIABLE_PREFIX), []).append(value)
    return found


async def _resolve_panel_variables(
    request: Request, definition: Dashboard, panel: Panel, time_range: TimeRange
) -> Mapping[str, VariableChoice]:
    """Return the variables of a panel with their values. If the request has all these values, no series are read."""
    requested = _requested_values(request.query_params.multi_items())
    known = known_choices(definition.variables, requested)
    names = {variable.name for variable in definition.variables}
    if (set().union(*(referenced(target.expr) for target in panel.targets)) & names) <= known.keys():
        return known
    return await _resolve_variables(request, definition, time_range)


async def _resolve_variables(
    request: Request, definition: Dashboard, time_range: TimeRange
) -> Mapping[str, VariableChoice]:
    """Return all variables of a dashboard with their values, cached because all panels of a page need the same ones."""
    requested = _requested_values(request.query_params.multi_items())
    cache = _variables_cache(request)
    selection = selection_of(request)
    version = await resolver_of(request).metrics_version(selection, MetricQuery(end=time_range.end_ms))
    key = msgspec.json.encode([definition.uid, requested, time_range, version, selection.as_of_ms])
    found = cache.get(key)
    if found is None:
        async with query_cache_of(request).turn(request):
            source = await _open_series(request, definition, time_range)
            found = await in_thread_to_end(
                lambda: resolve_variables(definition.variables, requested, source, time_range)
            )
        cache.put(key, found)
    return found


def _variables_cache(request: Request) -> LruCache[bytes, Mapping[str, VariableChoice]]:
    state = request.app.state
    if not hasattr(state, "chart_variables"):
        state.chart_variables = LruCache(_CACHED_RESULTS)
    cache: LruCache[bytes, Mapping[str, VariableChoice]] = state.chart_variables
    return cache


async def _load_data(request: Request, panel: Panel, queries: list[PanelQuery], time_range: TimeRange) -> ChartData:
    queries = queries if panel.kind else []
    results: list[Value | PromqlError] = []
    gaps: dict[MetricsGap, None] = {}
    dropped = 0
    for query in queries:
        try:
            evaluated = await evaluate_query(request, query.text, query.times)
        except PromqlError as error:
            results.append(error)
            continue
        results.append(evaluated.result.value)
        gaps |= dict.fromkeys(evaluated.gaps)
        dropped = max(dropped, evaluated.series_dropped)
    data = await asyncio.to_thread(panel_data, panel, queries, results, time_range)
    data.series_dropped = dropped
    in_range = [gap for gap in gaps if gap.from_ms <= time_range.end_ms and gap.to_ms >= time_range.start_ms]
    data.gaps = [
        ChartGap(
            max(gap.from_ms, time_range.start_ms),
            min(gap.to_ms, time_range.end_ms),
            (_UNREADABLE if gap.is_stored else _NOT_STORED).format(node=gap.node[:_NODE_CHARACTERS]),
        )
        for gap in in_range[:_MAX_GAPS]
    ]
    data.gaps_total = len(in_range)
    return data


async def _open_series(request: Request, definition: Dashboard, time_range: TimeRange) -> StoredSeries:
    names = variable_metrics(definition.variables, time_range)
    querier, _ = await open_querier(request, MetricQuery(None, max(0, time_range.start_ms), time_range.end_ms), names)
    return StoredSeries(querier, time_range.end_ms)


def _options(choice: VariableChoice) -> VariableOptions:
    variable = choice.variable
    return VariableOptions(
        name=variable.name,
        label=variable.label,
        multi=variable.multi,
        include_all=variable.include_all,
        hidden=variable.hidden,
        options=list(choice.options),
        values=list(choice.values),
    )


def _info(panel: Panel, variables: Mapping[str, VariableChoice]) -> PanelInfo:
    return PanelInfo(
        id=panel.id,
        title=interpolate_text(panel.title, variables),
        kind=panel.kind,
        grafana_type=panel.grafana_type,
        description=panel.description,
        unit=panel.unit,
        x=panel.grid.x,
        y=panel.grid.y,
        w=panel.grid.w,
        h=panel.grid.h,
        min=panel.min,
        max=panel.max,
        line_width=panel.line_width,
        connect_gaps=panel.connect_gaps,
        show_legend=panel.show_legend,
    )


ROUTES: list[BaseRoute] = [
    plain_route("/api/history/charts", list_charts),
    plain_route("/api/history/charts/{uid}", get_dashboard),
    plain_route("/api/history/charts/{uid}/panels/{panel}", get_panel),
]
