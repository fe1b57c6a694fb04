"""Grafana dashboards are parsed into panels, whatever shape their JSON has."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.metrics.dashboard_library import built_in_dashboards
from rayhistory.metrics.dashboard_model import BARS, TIMESERIES, Dashboard, Panel, SeriesStyle, parse_dashboard

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
FIELDS = ("panels", "type", "id", "title", "gridPos", "targets", "fieldConfig", "seriesOverrides", "legend", "yaxes",
          "options", "fill", "linewidth", "stack", "x", "y", "w", "h", "expr", "custom", "defaults")  # fmt: skip
HOSTILE_PANEL = st.dictionaries(st.sampled_from(FIELDS), ANY_JSON | st.just("row"), max_size=8)


def parse(*panels: dict[str, Any], **fields: Any) -> Dashboard:
    dashboard = parse_dashboard({"uid": "abc", "panels": list(panels), **fields})
    assert dashboard
    return dashboard


def parse_panel(**fields: Any) -> Panel:
    return parse({"id": 1, "type": "graph", **fields}).rows[0].panels[0]


def test_open_rows_are_followed_by_their_panels_and_collapsed_rows_contain_them() -> None:
    dashboard = parse(
        {"type": "row", "title": "Closed", "collapsed": True, "gridPos": {"y": 20}, "panels": [{"id": 3}]},
        {"type": "row", "title": "Open", "gridPos": {"y": 5}},
        {"id": 2, "gridPos": {"y": 6}},
        {"id": 1, "gridPos": {"y": 0}},
    )
    assert [(row.title, row.collapsed, [panel.id for panel in row.panels]) for row in dashboard.rows] == [
        ("", False, [1]), ("Open", False, [2]), ("Closed", True, [3]),
    ]  # fmt: skip


def test_old_and_new_panels_have_the_same_model() -> None:
    old = parse_panel(
        stack=True, fill=5, linewidth=2, nullPointMode="connected", yaxes=[{"format": "bytes", "min": "0"}]
    )
    new = parse_panel(
        type="timeseries",
        fieldConfig={
            "defaults": {
                "unit": "bytes",
                "min": 0,
                "custom": {"stacking": {"mode": "normal"}, "fillOpacity": 50, "lineWidth": 2, "spanNulls": True},
            }
        },
    )
    for panel in (old, new):
        assert (panel.kind, panel.unit, panel.stack, panel.fill) == (TIMESERIES, "bytes", True, 0.5)
        assert (panel.line_width, panel.connect_gaps, panel.min) == (2.0, True, 0.0)


def test_overrides_of_old_and_new_panels_become_styles() -> None:
    old = parse_panel(seriesOverrides=[{"alias": "MAX", "dashes": True, "color": "#1F60C4", "fill": 0, "stack": False}])
    assert old.styles == (SeriesStyle("MAX", "#1F60C4", dashed=True, fill=0.0, stack=False),)
    override = {
        "matcher": {"id": "byRegexp", "options": "FAILED"},
        "properties": [{"id": "custom.hideFrom", "value": {"viz": True}}],
    }
    assert parse_panel(fieldConfig={"overrides": [override]}).styles == (SeriesStyle("/FAILED/", hidden=True),)


def test_histogram_of_series_is_drawn_as_bars() -> None:
    assert parse_panel(bars=True, xaxis={"mode": "series"}).kind == BARS


def test_unknown_panel_keeps_the_name_of_its_type() -> None:
    panel = parse_panel(type="geomap")
    assert (panel.kind, panel.grafana_type) == ("", "geomap")


@pytest.mark.parametrize("color", ["url(https://evil)", "red;background:url(x)", "#12", 7])
def test_colors_that_are_none_are_ignored(color: object) -> None:
    assert parse_panel(seriesOverrides=[{"alias": "a", "color": color}]).styles[0].color == ""


@pytest.mark.parametrize("uid", [None, "", "a/b", "x" * 65, "<script>", 3])
def test_dashboard_without_valid_uid_is_skipped(uid: object) -> None:
    assert parse_dashboard({"uid": uid, "panels": []}) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(HOSTILE_PANEL, max_size=4), ANY_JSON)
def test_any_json_is_parsed(panels: list[dict[str, Any]], templating: Any) -> None:
    dashboard = parse(*panels, templating={"list": templating})
    for row in dashboard.rows:
        for panel in row.panels:
            assert panel.grid.x + panel.grid.w <= 24
            assert 0 <= panel.fill <= 1


def test_built_in_dashboards_have_the_panels_that_rays_frontend_embeds() -> None:
    """The overview embeds two panels of the default dashboard, the Serve pages several of theirs."""
    dashboards = built_in_dashboards()
    assert len(dashboards) == 8
    for uid, panels in {"rayDefaultDashboard": (24, 41), "rayServeDashboard": (7, 8, 15, 20),
                        "rayServeDeploymentDashboard": (2, 3, 5)}.items():  # fmt: skip
        for panel in panels:
            found = dashboards[uid].panel(panel)
            assert found
            assert found.targets
    assert all(panel.kind for each in dashboards.values() for row in each.rows for panel in row.panels)
