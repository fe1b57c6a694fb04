"""Results of a panel's queries become named and styled series."""

import math

import numpy as np

from rayhistory.metrics.chart_data import MAX_SERIES, panel_data, panel_queries, series_name
from rayhistory.metrics.dashboard_model import STAT, TIMESERIES, Panel, SeriesStyle, Target
from rayhistory.metrics.time_ranges import TimeRange
from rayhistory.promql.query_errors import EvaluationFailed, PromqlError
from rayhistory.promql.values import Scalar, Value, Vector

TIMES = TimeRange(0, 30_000, 15_000)


def vector(count: int = 2) -> Vector:
    labels = [(("State", f"S{number:03}"),) for number in range(count)]
    values = np.array([[number, math.nan, math.inf] for number in range(count)], dtype=float)
    return Vector(labels, values, np.ones((count, 3), dtype=bool))


def panel(kind: str = TIMESERIES, **fields: object) -> Panel:
    return Panel(1, "Tasks", kind, "graph", targets=(Target("tasks", "{{State}} tasks"),), **fields)  # type: ignore[arg-type]


def test_series_have_names_values_and_gaps() -> None:
    shown = panel(stack=True, fill=0.5)
    data = panel_data(shown, panel_queries(shown, {}, TIMES), [vector()], TIMES)
    assert data.times == [0, 15_000, 30_000]
    assert [(each.name, each.values, each.stack, each.fill) for each in data.series] == [
        ("S000 tasks", [0.0, None, None], True, 0.5), ("S001 tasks", [1.0, None, None], True, 0.5),
    ]  # fmt: skip


def test_styles_apply_by_name_and_by_pattern() -> None:
    styles = (
        SeriesStyle("S000 tasks", color="#777777", dashed=True, stack=False),
        SeriesStyle("/S00[1-9]/", hidden=True),
    )
    shown = panel(stack=True, styles=styles)
    first, second = panel_data(shown, panel_queries(shown, {}, TIMES), [vector()], TIMES).series
    assert (first.color, first.dashed, first.stack, first.hidden) == ("#777777", True, False, False)
    assert (second.stack, second.hidden) == (True, True)


def test_failed_query_is_reported_beside_the_others() -> None:
    shown = Panel(1, "", TIMESERIES, "graph", targets=(Target("a"), Target("1")))
    results: list[Value | PromqlError] = [EvaluationFailed("too many samples"), Scalar(np.ones(3))]
    data = panel_data(shown, panel_queries(shown, {}, TIMES), results, TIMES)
    assert data.errors == ["too many samples (query: a)"]
    assert [each.values for each in data.series] == [[1.0, 1.0, 1.0]]


def test_number_panels_are_evaluated_at_the_end_only() -> None:
    shown = panel(STAT)
    (query,) = panel_queries(shown, {}, TIMES)
    assert query.times.tolist() == [30_000]
    result = Vector([()], np.array([[7.0]]), np.ones((1, 1), dtype=bool))
    assert panel_data(shown, [query], [result], TIMES).series[0].values == [7.0]


def test_panel_with_too_many_series_says_so() -> None:
    data = panel_data(panel(), panel_queries(panel(), {}, TIMES), [vector(MAX_SERIES + 5)], TIMES)
    assert (len(data.series), data.series_total) == (MAX_SERIES, MAX_SERIES + 5)


def test_series_without_legend_has_the_notation_of_prometheus() -> None:
    assert series_name("", (("__name__", "up"), ("ip", "1"))) == 'up{ip="1"}'
    assert series_name("{{ ip }} {{missing}}", (("ip", "<b>"),)) == "<b> "
    assert series_name("{{application, route}}", (("application", "shop"), ("route", "/buy"))) == "shop, /buy"
