"""The data of one panel: run its queries, name and style the series, and keep the response small."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np
import re2

from rayhistory.metrics.dashboard_model import BARS, GAUGE, STAT, TABLE, Panel, SeriesStyle, Target
from rayhistory.metrics.template_variables import VariableChoice, interpolate
from rayhistory.metrics.time_ranges import TimeRange
from rayhistory.promql.arrays import Times
from rayhistory.promql.engine import grid
from rayhistory.promql.labels import Labels, format_labels, metric_name, without_name
from rayhistory.promql.query_errors import PromqlError
from rayhistory.promql.values import Scalar, Value, Vector, label_order

MAX_SERIES = 300
_MAX_NAME = 300
_LEGEND_LABELS = re.compile(r"\{\{\s*(\w+(?:\s*,\s*\w+)*)\s*\}\}", re.ASCII)
_CACHED_MATCHES = 8192
_SINGLE_VALUE = (STAT, GAUGE, TABLE, BARS)


class ChartSeries(msgspec.Struct):
    name: str
    labels: dict[str, str]
    values: list[float | None]
    """One value per time; null if the series has no sample, or one that is not a number."""
    color: str = ""
    dashed: bool = False
    stack: bool = False
    fill: float = 0.0
    hidden: bool = False


class ChartGap(msgspec.Struct):
    from_ms: int
    to_ms: int
    reason: str


class ChartData(msgspec.Struct):
    times: list[int]
    series: list[ChartSeries]
    series_total: int
    """Number of all series. If there are too many, only some are listed."""
    errors: list[str]
    """Queries that failed, with their reasons."""
    queries: list[str]
    from_ms: int
    to_ms: int
    step_ms: int
    gaps: list[ChartGap] = []
    """Times for which samples of a node are not stored or could not be read."""
    gaps_total: int = 0
    """Number of all gaps. If there are too many, only some are listed."""
    series_dropped: int = 0
    """Number of series that a node did not store because it had too many."""


class PanelQuery(msgspec.Struct):
    """One query of a panel, with the times at which it is evaluated."""

    target: Target
    text: str
    times: Times


def panel_queries(panel: Panel, choices: Mapping[str, VariableChoice], times: TimeRange) -> list[PanelQuery]:
    steps = grid(times.start_ms, times.end_ms, times.step_ms)
    last = steps[-1:]
    return [
        PanelQuery(
            target,
            interpolate(target.expr, choices, times),
            last if target.instant or panel.kind in _SINGLE_VALUE else steps,
        )
        for target in panel.targets
    ]


def panel_data(
    panel: Panel, queries: list[PanelQuery], results: Sequence[Value | PromqlError], times: TimeRange
) -> ChartData:
    """Combine the results of a panel's queries. A failed query does not hide the others."""
    steps = grid(times.start_ms, times.end_ms, times.step_ms)
    kept_times = steps[-1:] if all(query.times.size == 1 for query in queries) else steps
    series, errors = list[ChartSeries](), list[str]()
    total = 0
    for query, result in zip(queries, results, strict=True):
        if isinstance(result, PromqlError):
            errors.append(f"{result} (query: {query.text})")
            continue
        vector = result if isinstance(result, Vector) else _constant(result)
        total += len(vector.labels)
        series += _series(panel, query.target, vector, kept_times.size, MAX_SERIES - len(series))
    if panel.hide_zero and panel.kind not in _SINGLE_VALUE:
        series.sort(key=lambda each: not any(each.values))
    return ChartData(
        times=kept_times.tolist(),
        series=series,
        series_total=total,
        errors=errors,
        queries=[query.text for query in queries],
        from_ms=times.start_ms,
        to_ms=times.end_ms,
        step_ms=times.step_ms,
    )


def _constant(value: object) -> Vector:
    if isinstance(value, Scalar):
        return Vector([()], value.values[None, :], np.ones((1, value.values.size), dtype=bool))
    return Vector([], np.empty((0, 1)), np.empty((0, 1), dtype=bool))


def _series(panel: Panel, target: Target, vector: Vector, steps: int, room: int) -> list[ChartSeries]:
    found = []
    vector = vector.rows(label_order(vector.labels)[: max(0, room)])
    hidden = ~(vector.present & np.isfinite(vector.values))
    for row, labels in enumerate(vector.labels):
        values: list[float | None] = vector.values[row].tolist()
        for step in np.flatnonzero(hidden[row]).tolist():
            values[step] = None
        if len(values) < steps:
            values[:0] = [None] * (steps - len(values))
        found.append(_styled(panel, series_name(target.legend, labels), labels, values))
    return found


def series_name(legend: str, labels: Labels) -> str:
    """Fill in `{{label}}` of a legend. Without a legend, return the series as Prometheus writes it.

    Ray's charts of Serve have `{{application, route}}`, for which Grafana shows nothing.
    """
    if not legend:
        inside = without_name(labels)
        return (metric_name(labels) + (format_labels(inside) if inside else "") or "Value")[:_MAX_NAME]
    by_name = dict(labels)

    def values(found: re.Match[str]) -> str:
        return ", ".join(by_name.get(name.strip(), "") for name in found[1].split(","))

    return _LEGEND_LABELS.sub(values, legend)[:_MAX_NAME]


def _styled(panel: Panel, name: str, labels: Labels, values: list[float | None]) -> ChartSeries:
    series = ChartSeries(name, dict(labels), values, stack=panel.stack, fill=panel.fill)
    for style in panel.styles:
        if style_matches(style, name):
            series.color = style.color or series.color
            series.dashed = series.dashed if style.dashed is None else style.dashed
            series.stack = series.stack if style.stack is None else style.stack
            series.fill = series.fill if style.fill is None else style.fill
            series.hidden = style.hidden or series.hidden
    return series


@lru_cache(maxsize=_CACHED_MATCHES)
def style_matches(style: SeriesStyle, name: str) -> bool:
    if len(style.name) < 3 or not (style.name.startswith("/") and style.name.endswith("/")):
        return style.name == name
    pattern = _style_pattern(style.name[1:-1])
    return pattern is not None and pattern.search(name) is not None


@lru_cache(maxsize=256)
def _style_pattern(text: str) -> "re.Pattern[str] | None":
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: re.Pattern[str] = re2.compile(text, options)
    except re2.error:
        return None
    return compiled
