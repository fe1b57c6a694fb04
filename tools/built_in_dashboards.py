"""Write the built-in Grafana dashboards from the installed Ray: `python tools/built_in_dashboards.py`.

They are shown for sessions without Grafana dashboards of their own. Only what charts need is kept,
such as the positions, titles, units and queries of panels.
"""

import importlib
import inspect
import json
from typing import Any

from rayhistory.metrics.dashboard_library import BUILT_IN_PATH

_FACTORY = "ray.dashboard.modules.metrics.grafana_dashboard_factory"
_PANEL_FIELDS = (
    "id", "type", "title", "gridPos", "stack", "fill", "linewidth", "nullPointMode", "collapsed", "seriesOverrides",
)  # fmt: skip
_VARIABLE_FIELDS = ("name", "type", "label", "regex", "multi", "includeAll", "allValue", "current", "hide")


def main() -> None:
    factory = importlib.import_module(_FACTORY)
    dashboards = [
        _dashboard(json.loads(generate()[0]))
        for name, generate in sorted(inspect.getmembers(factory, inspect.isfunction))
        if name.startswith("generate_")
    ]
    lines = ",\n".join(json.dumps(each, separators=(",", ":"), sort_keys=True) for each in dashboards)
    BUILT_IN_PATH.write_text(f"[\n{lines}\n]\n")
    print(f"{BUILT_IN_PATH}: {len(dashboards)} dashboards, {BUILT_IN_PATH.stat().st_size:,} bytes")


def _dashboard(document: dict[str, Any]) -> dict[str, Any]:
    variables = [_variable(each) for each in document["templating"]["list"]]
    return {
        "uid": document["uid"],
        "title": document["title"],
        "templating": {"list": variables},
        "panels": [_panel(each) for each in document["panels"]],
    }


def _panel(document: dict[str, Any]) -> dict[str, Any]:
    panel = {name: document[name] for name in _PANEL_FIELDS if name in document}
    panel["seriesOverrides"] = [
        {name: value for name, value in each.items() if not name.startswith("$")}
        for each in document.get("seriesOverrides", [])
    ]
    defaults = document.get("fieldConfig", {}).get("defaults", {})
    kept = {name: defaults[name] for name in ("unit", "min", "max") if name in defaults}
    axis = (document.get("yaxes") or [{}])[0]
    panel |= {"fieldConfig": {"defaults": kept}, "yaxes": [{"min": axis.get("min"), "max": axis.get("max")}]}
    panel["legend"] = {"hideZero": document.get("legend", {}).get("hideZero", False)}
    if document.get("xaxis", {}).get("mode") == "series":
        panel["xaxis"] = {"mode": "series"}
    panel["targets"] = [
        {name: each[name] for name in ("expr", "legendFormat", "instant") if name in each}
        for each in document.get("targets", [])
    ]
    panel["panels"] = [_panel(each) for each in document.get("panels", [])]
    return {name: value for name, value in panel.items() if value not in (None, [], {})}


def _variable(document: dict[str, Any]) -> dict[str, Any]:
    variable = {name: document[name] for name in _VARIABLE_FIELDS if document.get(name) is not None}
    query = document.get("query")
    variable["query"] = query["query"] if isinstance(query, dict) else query
    return variable


if __name__ == "__main__":
    main()
