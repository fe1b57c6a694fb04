"""Charts of a session: its Grafana dashboards as rows and panels, and the data of each panel."""

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import NotFound, RayHistoryError
from rayhistory.lru import LruCache
from rayhistory.metrics.chart_data import ChartData, ChartGap, PanelQuery, panel_data, panel_queries
from rayhistory.metrics.dashboard_model import Dashboard, Panel
from rayhistory.metrics.metrics_reader import MetricsGap
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.metrics.stored_series import StoredSeries
from rayhistory.metrics.template_variables import (
    VariableChoice,
    interpolate_text,
    known_choices,
    referenced,
    resolve_variables,
    variable_metrics,
)
from rayhistory.metrics.time_ranges import SessionTimes, TimeRange, parse_range
from rayhistory.promql.query_errors import PromqlError
from rayhistory.promql.values import Value
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of
from rayhistory.server.metrics_api.chart_types import (
    ChartDashboard,
    ChartRow,
    DashboardTitle,
    DashboardTitles,
    PanelInfo,
    VariableOptions,
)
from rayhistory.server.metrics_api.session_metrics import evaluate_query, open_querier

_DEFAULT_FROM, _DEFAULT_TO, _DEFAULT_POINTS = "now-30m", "now", 300
_VARIABLE_PREFIX = "var-"
_MAX_GAPS = 100
_NODE_CHARACTERS = 12
_CACHED_CHOICES = 64
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


async def dashboard(request: Request) -> Response:
    """Return rows, panels, and variables with their options."""
    try:
        definition = await _definition(request)
        times = await resolver_of(request).metrics_times(selection_of(request))
        chosen = _time_range(request, times)
        choices = await _resolved(request, definition, chosen)
    except RayHistoryError as error:
        return api_error_response(error)
    return json_response(
        ChartDashboard(
            uid=definition.uid,
            title=definition.title,
            first_ms=times.first_ms if times else 0,
            last_ms=times.last_ms if times else 0,
            variables=[_options(choice) for choice in choices.values()],
            rows=[
                ChartRow(
                    interpolate_text(row.title, choices), row.collapsed, [_info(each, choices) for each in row.panels]
                )
                for row in definition.rows
            ],
        )
    )


async def panel(request: Request) -> Response:
    """Return the series of one panel."""
    try:
        definition = await _definition(request)
        number = request.path_params["panel"]
        found = definition.panel(int(number)) if number.isdecimal() and len(number) < 10 else None
        if found is None:
            raise NotFound(f"Grafana dashboard {definition.uid} has no panel {number[:20]!r}")
        times = await resolver_of(request).metrics_times(selection_of(request))
        chosen = _time_range(request, times)
        choices = await _choices(request, definition, found, chosen)
        data = await _data(request, found, panel_queries(found, choices, chosen), chosen)
    except RayHistoryError as error:
        return api_error_response(error)
    return await asyncio.to_thread(json_response, data)


async def _definition(request: Request) -> Dashboard:
    return (await resolver_of(request).dashboards(selection_of(request))).get(request.path_params["uid"])


def _time_range(request: Request, times: SessionTimes | None) -> TimeRange:
    params = request.query_params
    points = params.get("points", "")
    return parse_range(
        params.get("from") or _DEFAULT_FROM,
        params.get("to") or _DEFAULT_TO,
        times or SessionTimes(0, 0),
        int(points) if points.isdecimal() and len(points) < 6 else _DEFAULT_POINTS,
    )


def _requested(params: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in params:
        if name.startswith(_VARIABLE_PREFIX):
            found.setdefault(name.removeprefix(_VARIABLE_PREFIX), []).append(value)
    return found


async def _choices(
    request: Request, definition: Dashboard, panel: Panel, chosen: TimeRange
) -> Mapping[str, VariableChoice]:
    """Return the variables of one panel. No series are read if the page has already chosen values."""
    requested = _requested(request.query_params.multi_items())
    known = known_choices(definition.variables, requested)
    names = {variable.name for variable in definition.variables}
    if (set().union(*(referenced(target.expr) for target in panel.targets)) & names) <= known.keys():
        return known
    return await _resolved(request, definition, chosen)


async def _resolved(request: Request, definition: Dashboard, chosen: TimeRange) -> Mapping[str, VariableChoice]:
    """Return all variables. Panels of a page share them, so the last results are cached."""
    requested = _requested(request.query_params.multi_items())
    cache = _choices_cache(request)
    selection = selection_of(request)
    version = await resolver_of(request).metrics_version(selection, MetricQuery(end=chosen.end_ms))
    key = msgspec.json.encode([definition.uid, requested, chosen, version, selection.as_of_ms])
    found = cache.get(key)
    if found is None:
        source = await _series_queries(request, definition, chosen)
        found = await asyncio.to_thread(resolve_variables, definition.variables, requested, source, chosen)
        cache.put(key, found)
    return found


def _choices_cache(request: Request) -> LruCache[bytes, Mapping[str, VariableChoice]]:
    state = request.app.state
    if not hasattr(state, "chart_choices"):
        state.chart_choices = LruCache(_CACHED_CHOICES)
    cache: LruCache[bytes, Mapping[str, VariableChoice]] = state.chart_choices
    return cache


async def _data(request: Request, panel: Panel, queries: list[PanelQuery], chosen: TimeRange) -> ChartData:
    results: list[Value | PromqlError] = []
    gaps: dict[MetricsGap, None] = {}
    dropped = 0
    for query in queries if panel.kind else []:
        try:
            evaluated = await evaluate_query(request, query.text, query.times)
        except PromqlError as error:
            results.append(error)
            continue
        results.append(evaluated.result.value)
        gaps |= dict.fromkeys(evaluated.gaps)
        dropped = max(dropped, evaluated.series_dropped)
    data = await asyncio.to_thread(panel_data, panel, queries if panel.kind else [], results, chosen)
    data.series_dropped = dropped
    data.gaps = [
        ChartGap(
            max(gap.from_ms, chosen.start_ms),
            min(gap.to_ms, chosen.end_ms),
            _UNREADABLE.format(node=gap.node[:_NODE_CHARACTERS]),
        )
        for gap in list(gaps)[:_MAX_GAPS]
        if gap.from_ms <= chosen.end_ms and gap.to_ms >= chosen.start_ms
    ]
    return data


async def _series_queries(request: Request, definition: Dashboard, chosen: TimeRange) -> StoredSeries:
    names = variable_metrics(definition.variables, chosen)
    querier, _ = await open_querier(request, MetricQuery(None, max(0, chosen.start_ms), chosen.end_ms), names)
    return StoredSeries(querier, chosen.end_ms)


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


def _info(panel: Panel, choices: Mapping[str, VariableChoice]) -> PanelInfo:
    return PanelInfo(
        id=panel.id,
        title=interpolate_text(panel.title, choices),
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
    plain_route("/api/history/charts/{uid}", dashboard),
    plain_route("/api/history/charts/{uid}/panels/{panel}", panel),
]
