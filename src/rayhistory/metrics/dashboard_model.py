"""A Grafana dashboard as values: rows, panels, queries and variables.

The JSON comes from a cluster and may have any shape. Unknown values get a default. A panel of an unknown type keeps the
name of its type.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

MAX_PANELS = 500
MAX_TARGETS = 26
MAX_VARIABLES = 40
MAX_TEXT = 4_096
MAX_QUERY = 20_000
_MAX_OVERRIDES = 50
_UID = re.compile(r"[\w-]{1,64}", re.ASCII)
_COLOR = re.compile(r"#[0-9a-fA-F]{3,8}|[a-z-]{3,24}|rgba?\([0-9., %]{1,40}\)")
_COLUMNS = 24

TIMESERIES, BARS, STAT, GAUGE, TABLE, HEATMAP = "timeseries", "bars", "stat", "gauge", "table", "heatmap"
_KINDS = {
    "graph": TIMESERIES, "timeseries": TIMESERIES, "stat": STAT, "singlestat": STAT, "gauge": GAUGE,
    "bargauge": BARS, "piechart": BARS, "barchart": BARS, "table": TABLE, "table-old": TABLE, "heatmap": HEATMAP,
}  # fmt: skip
"""Grafana's panel types and how they are drawn here."""


class Target(msgspec.Struct, frozen=True):
    """One query of a panel."""

    expr: str
    legend: str = ""
    instant: bool = False


class SeriesStyle(msgspec.Struct, frozen=True):
    """The style of all series that have this name. A name between slashes is a regular expression."""

    name: str
    color: str = ""
    dashed: bool | None = None
    fill: float | None = None
    stack: bool | None = None
    hidden: bool = False


class Grid(msgspec.Struct, frozen=True):
    """Position of a panel: 24 columns, and rows of Grafana's height."""

    x: int = 0
    y: int = 0
    w: int = 12
    h: int = 8


class Panel(msgspec.Struct, frozen=True):
    id: int
    title: str
    kind: str
    """How the panel is drawn: one of the kinds of this module; empty if it cannot be drawn."""
    grafana_type: str
    description: str = ""
    unit: str = "short"
    grid: Grid = Grid()
    stack: bool = False
    fill: float = 0.0
    """Opacity of the area below a line, 0 to 1."""
    line_width: float = 1.0
    connect_gaps: bool = False
    min: float | None = None
    max: float | None = None
    show_legend: bool = True
    hide_zero: bool = False
    targets: tuple[Target, ...] = ()
    styles: tuple[SeriesStyle, ...] = ()


class PanelRow(msgspec.Struct, frozen=True):
    title: str
    """Title of the row; empty for panels above the first row."""
    collapsed: bool
    panels: tuple[Panel, ...]


class Variable(msgspec.Struct, frozen=True):
    name: str
    kind: str
    """Type of the variable in Grafana: query, custom, interval, constant, textbox, datasource."""
    label: str
    query: str
    regex: str = ""
    multi: bool = False
    include_all: bool = False
    all_value: str = ""
    current: tuple[str, ...] = ()
    hidden: bool = False


class Dashboard(msgspec.Struct, frozen=True):
    uid: str
    title: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...]

    def panel(self, panel_id: int) -> Panel | None:
        return next((panel for row in self.rows for panel in row.panels if panel.id == panel_id), None)


def parse_dashboard(document: dict[str, Any]) -> Dashboard | None:
    """Return the Grafana dashboard; None if it has no valid uid."""
    uid = document.get("uid")
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        return None
    variables = _dicts(_member(document, "templating").get("list"))
    return Dashboard(
        uid=uid,
        title=_text(document, "title") or uid,
        rows=tuple(_rows(_dicts(document.get("panels"))[:MAX_PANELS])),
        variables=tuple(filter(None, map(_variable, variables[:MAX_VARIABLES]))),
    )


def _rows(documents: list[dict[str, Any]]) -> Iterator[PanelRow]:
    """Group panels by row. A collapsed row contains its panels; an open row is followed by them."""
    title, collapsed, panels = "", False, list[Panel]()
    for document in sorted(documents, key=lambda each: (_grid(each).y, _grid(each).x)):
        if document.get("type") != "row":
            panels.append(_panel(document))
            continue
        if panels or title:
            yield PanelRow(title, collapsed, tuple(panels))
        title, collapsed = _text(document, "title") or "PanelRow", document.get("collapsed") is True
        panels = [_panel(each) for each in _dicts(document.get("panels"))[:MAX_PANELS] if each.get("type") != "row"]
    if panels or title:
        yield PanelRow(title, collapsed, tuple(panels))


def _panel(document: dict[str, Any]) -> Panel:
    defaults = _member(document, "fieldConfig", "defaults")
    custom = _member(defaults, "custom")
    options, legend = _member(document, "options"), _member(document, "legend")
    axis = next(iter(_dicts(document.get("yaxes"))), {})
    kind, grafana_type = _kind(document), _text(document, "type")[:64]
    return Panel(
        id=_integer(document.get("id"), 0),
        title=_text(document, "title"),
        kind=kind,
        grafana_type=grafana_type,
        description=_text(document, "description"),
        unit=(_text(defaults, "unit") or _text(axis, "format") or "short")[:64],
        grid=_grid(document),
        stack=document.get("stack") is True or _text(_member(custom, "stacking"), "mode") in ("normal", "percent"),
        fill=_fill(document, custom, grafana_type),
        line_width=min(10.0, max(0.0, _number(document.get("linewidth", custom.get("lineWidth")), 1.0))),
        connect_gaps=document.get("nullPointMode") == "connected" or custom.get("spanNulls") is True,
        min=_bound(defaults.get("min", axis.get("min"))),
        max=_bound(defaults.get("max", axis.get("max"))),
        show_legend=legend.get("show", _member(options, "legend").get("showLegend", True)) is not False,
        hide_zero=legend.get("hideZero") is True,
        targets=tuple(filter(None, map(_target, _dicts(document.get("targets"))[:MAX_TARGETS]))),
        styles=(*_legacy_styles(document), *_field_styles(document)),
    )


def _kind(document: dict[str, Any]) -> str:
    if document.get("type") == "graph" and _member(document, "xaxis").get("mode") == "series":
        return BARS
    return _KINDS.get(_text(document, "type"), "")


def _fill(document: dict[str, Any], custom: dict[str, Any], grafana_type: str) -> float:
    """Return an opacity from 0 to 1. Old panels have a number from 0 to 10, newer panels a percentage."""
    is_old = grafana_type == "graph"
    share = _number(document.get("fill"), 0.0) / 10 if is_old else _number(custom.get("fillOpacity"), 0.0) / 100
    return min(1.0, max(0.0, share))


def _target(document: dict[str, Any]) -> Target | None:
    expr = document.get("expr")
    if not isinstance(expr, str) or not expr.strip() or len(expr) > MAX_QUERY or document.get("hide") is True:
        return None
    legend = _text(document, "legendFormat")
    return Target(expr, "" if legend == "__auto" else legend, document.get("instant") is True)


def _legacy_styles(document: dict[str, Any]) -> Iterator[SeriesStyle]:
    for each in _dicts(document.get("seriesOverrides"))[:_MAX_OVERRIDES]:
        if not (name := _text(each, "alias")):
            continue
        fill = each.get("fill")
        yield SeriesStyle(
            name=name,
            color=_color(each.get("color")),
            dashed=each.get("dashes") if isinstance(each.get("dashes"), bool) else None,
            fill=None if fill is None else min(1.0, max(0.0, _number(fill, 0.0) / 10)),
            stack=each.get("stack") if isinstance(each.get("stack"), bool) else None,
            hidden=each.get("hiddenSeries") is True,
        )


def _field_styles(document: dict[str, Any]) -> Iterator[SeriesStyle]:
    """Yield the styles in the field overrides of newer panels."""
    for each in _dicts(_member(document, "fieldConfig").get("overrides"))[:_MAX_OVERRIDES]:
        matcher = _member(each, "matcher")
        name = _text(matcher, "options")
        if matcher.get("id") not in ("byName", "byRegexp") or not name:
            continue
        name = f"/{name.strip('/')}/" if matcher.get("id") == "byRegexp" else name
        found = {_text(one, "id"): one.get("value") for one in _dicts(each.get("properties"))}
        dash, hide = found.get("custom.lineStyle"), found.get("custom.hideFrom")
        stacking = found.get("custom.stacking")
        fill = found.get("custom.fillOpacity")
        color = found.get("color")
        yield SeriesStyle(
            name=name,
            color=_color(color.get("fixedColor")) if isinstance(color, dict) else "",
            dashed=dash.get("fill") == "dash" if isinstance(dash, dict) else None,
            fill=None if fill is None else min(1.0, max(0.0, _number(fill, 0.0) / 100)),
            stack=stacking.get("mode") in ("normal", "percent") if isinstance(stacking, dict) else None,
            hidden=isinstance(hide, dict) and hide.get("viz") is True,
        )


def _variable(document: dict[str, Any]) -> Variable | None:
    name = _text(document, "name")
    if not re.fullmatch(r"\w{1,64}", name, re.ASCII):
        return None
    query = document.get("query")
    text = query.get("query") if isinstance(query, dict) else query
    hide = document.get("hide")
    return Variable(
        name=name,
        kind=_text(document, "type") or "query",
        label=_text(document, "label") or name,
        query=text[:MAX_QUERY] if isinstance(text, str) else "",
        regex=_text(document, "regex"),
        multi=document.get("multi") is True,
        include_all=document.get("includeAll") is True,
        all_value=_text(document, "allValue"),
        current=_current(_member(document, "current").get("value")),
        hidden=hide == 2 or document.get("type") == "datasource",
    )


def _current(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(each[:MAX_TEXT] for each in values if isinstance(each, str) and each)[:100]


def _grid(document: dict[str, Any]) -> Grid:
    place = _member(document, "gridPos")
    width = min(_COLUMNS, max(1, _integer(place.get("w"), 12)))
    return Grid(
        x=min(_COLUMNS - width, max(0, _integer(place.get("x"), 0))),
        y=min(100_000, max(0, _integer(place.get("y"), 0))),
        w=width,
        h=min(40, max(2, _integer(place.get("h"), 8))),
    )


def _member(document: Any, *path: str) -> dict[str, Any]:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    items: Iterable[Any] = value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict)]


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _color(value: Any) -> str:
    return value if isinstance(value, str) and _COLOR.fullmatch(value) else ""


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def _integer(value: Any, default: int) -> int:
    return int(min(2**31, max(-(2**31), _number(value, default))))


def _bound(value: Any) -> float | None:
    number = _number(value, math.nan) if value not in (None, "") else math.nan
    return None if math.isnan(number) else number
