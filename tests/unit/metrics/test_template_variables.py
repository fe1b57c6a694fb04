"""Variables of dashboards: options from series, values in queries, hostile names."""

import pytest

from rayhistory.metrics.dashboard_model import Variable
from rayhistory.metrics.template_variables import (
    ALL,
    Labels,
    VariableChoice,
    interpolate,
    known_choices,
    referenced,
    resolve_variables,
)
from rayhistory.metrics.time_ranges import TimeRange
from rayhistory.promql.syntax import parse

TIMES = TimeRange(0, 1_800_000, 15_000)
INSTANCE = Variable(
    "Instance", "query", "Instance", 'label_values(ray_up{SessionName=~"$SessionName"}, instance)',
    multi=True, include_all=True, all_value=".+",
)  # fmt: skip
SESSION = Variable("SessionName", "query", "Session", "label_values(ray_up, SessionName)")


class Series:
    """Series as a reader knows them; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def label_values(self, selector: str, label: str) -> list[str]:
        self.asked.append(f"{label} of {selector}")
        return {"instance": ["10.0.0.2", "10.0.0.1"], "SessionName": ["session_1"]}[label]

    def query_result(self, query: str) -> list[tuple[Labels, float]]:
        self.asked.append(query)
        return [((("dataset", "a"),), 1.0), ((("dataset", 'b"c'),), 2.0)]


def test_options_come_from_series_and_depend_on_earlier_variables() -> None:
    series = Series()
    choices = resolve_variables([SESSION, INSTANCE], {}, series, TIMES)
    assert series.asked == ["SessionName of ray_up", 'instance of ray_up{SessionName=~"session_1"}']
    assert choices["Instance"].options == ("10.0.0.1", "10.0.0.2")
    assert choices["Instance"].values == (ALL,)
    assert choices["SessionName"].values == ("session_1",)


def test_query_result_is_filtered_by_the_regular_expression() -> None:
    variable = Variable(
        "D", "query", "D", "query_result(count by (dataset)(x[$__range]))", regex='{dataset="(?<value>.*)".*'
    )
    series = Series()
    choices = resolve_variables([variable], {}, series, TIMES)
    assert series.asked == ["count by (dataset)(x[1800s])"]
    assert choices["D"].options == ("a", 'b"c')


def test_custom_variable_lists_its_options() -> None:
    variable = Variable("Type", "custom", "Type", "head, worker", include_all=True, multi=True)
    choice = resolve_variables([variable], {}, Series(), TIMES)["Type"]
    assert (choice.options, choice.in_query()) == (("head", "worker"), "(head|worker)")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["$__all"], 'up{instance=~".+"}'),
        (["All"], 'up{instance=~".+"}'),
        (["10.0.0.1"], 'up{instance=~"10\\\\.0\\\\.0\\\\.1"}'),
        (["a", "b"], 'up{instance=~"(a|b)"}'),
        (['x"} or up{a="'], 'up{instance=~"x\\"\\\\} or up\\\\{a=\\""}'),
    ],
)
def test_values_match_exactly_themselves_inside_of_a_query(values: list[str], text: str) -> None:
    choices = resolve_variables([INSTANCE], {"Instance": values}, Series(), TIMES)
    query = interpolate('up{instance=~"$Instance"}', choices, TIMES)
    assert query == text
    parse(query)


@pytest.mark.parametrize("form", ["$Instance", "${Instance}", "${Instance:regex}", "[[Instance]]"])
def test_all_forms_of_references_are_replaced(form: str) -> None:
    choices = {"Instance": VariableChoice(INSTANCE, (), ("a",))}
    assert interpolate(form, choices, TIMES) == "a"
    assert referenced(form) == {"Instance"}


def test_built_in_variables_are_durations() -> None:
    text = interpolate("$__range $__interval $__rate_interval ${__from} $unknown", {}, TIMES)
    assert text == "1800s 15s 60s 0 $unknown"


def test_choices_without_options_need_no_series() -> None:
    """A page has asked for the options once; its panels only need the values."""
    assert set(known_choices([SESSION, INSTANCE], {})) == {"Instance"}
    assert set(known_choices([SESSION, INSTANCE], {"SessionName": ["s"]})) == {"SessionName", "Instance"}


def test_invalid_regular_expression_keeps_all_options() -> None:
    variable = Variable("I", "query", "I", "label_values(instance)", regex="/(/")
    assert len(resolve_variables([variable], {}, Series(), TIMES)["I"].options) == 2
