"""Shapes of the pictures on the diagnosis page."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.web.diagnosis_charts import CHART_HEIGHT, CHART_WIDTH, finding_marks, state_bars


def finding(first: int | None, last: int | None) -> Finding:
    return Finding(code="node_lost", severity="critical", headline="gone", first_ms=first, last_ms=last)


def test_bars_of_one_time_are_stacked_with_running_tasks_at_the_bottom() -> None:
    bars = state_bars({"waiting_node": [3, 0], "running": [1, 2]})
    assert [(bar.state, bar.x, bar.y, bar.height) for bar in bars] == [
        ("running", 0.0, 120.0, 40.0), ("waiting_node", 0.0, 0.0, 120.0), ("running", 500.0, 80.0, 80.0),
    ]  # fmt: skip
    assert max(bar.y + bar.height for bar in bars) == CHART_HEIGHT


def test_session_without_tasks_has_no_bars() -> None:
    assert state_bars({}) == state_bars({"running": [0, 0]}) == []


def test_marks_stay_within_the_axis_whatever_clocks_say() -> None:
    marks = finding_marks(
        [finding(-5, 10**15), finding(1_999, 2_000), finding(None, None), finding(1_500, None)], 1_000, 2_000
    )
    assert [mark.number for mark in marks] == [0, 1, 3]
    assert all(mark.x >= 0 and mark.x + mark.width <= CHART_WIDTH and mark.width >= 3 for mark in marks)


def test_session_without_a_span_has_no_axis() -> None:
    assert finding_marks([finding(1, 2)], None, 5) == finding_marks([finding(1, 2)], 5, 5) == []
