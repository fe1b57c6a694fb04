"""PromQL: our own scripts, laws that hold for any data, limits and hostile queries."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promql import promqltest
from promql.promqltest import Case, MemorySource, Script
from rayhistory.promql.engine import Limits, evaluate, grid, metrics_at_steps, required_samples
from rayhistory.promql.label_table import LabelTable
from rayhistory.promql.labels import labels_of
from rayhistory.promql.matchers import Matcher
from rayhistory.promql.query_errors import EvaluationFailed, NotSupported, PromqlError, QuerySyntaxError
from rayhistory.promql.values import NO_TIME, SeriesSet, Vector

SCRIPT = Path(promqltest.__file__).with_name("engine.test")
CASES = list(Script(SCRIPT).cases())


@pytest.mark.parametrize(("case", "source"), CASES, ids=[f"line {case.line}" for case, _ in CASES])
def test_own_scripts(case: Case, source: MemorySource) -> None:
    promqltest.run(case, source)


QUERIES = [
    "x",
    "rate(x[1m])",
    "increase(x[90s])",
    "delta(x[1m])",
    "irate(x[1m])",
    "changes(x[1m]) + resets(x[1m])",
    "sum by (node) (x)",
    "max_over_time(x[1m]) - min_over_time(x[1m])",
    "stddev_over_time(x[1m])",
    "quantile_over_time(0.3, x[1m])",
    "deriv(x[1m])",
    "topk(1, x)",
    "x offset 30s",
    "x and on(node) (x > 3)",
    "max_over_time(rate(x[30s])[1m:15s])",
    "absent(x)",
    "x * on(node) group_left() sum by (node) (x)",
    "x == x",
    "x / on(n) (x + 1)",
    "x > on(n) (x * 2 - 5)",
    "x >= bool ignoring(node) (2 * x)",
]

series = st.lists(st.one_of(st.none(), st.floats(-10, 100)), min_size=20, max_size=20)


def source_of(rows: list[list[float | None]]) -> MemorySource:
    """One series_set with gaps, as the samples of a node are stored."""
    source = MemorySource()
    labels = [labels_of({"__name__": "x", "node": str(number % 2), "n": str(number)}) for number in range(len(rows))]
    present = np.array([[value is not None for value in row] for row in rows])
    values = np.array([[value or 0.0 for value in row] for row in rows])
    series_set = SeriesSet(np.arange(20, dtype=np.int64) * 10_000, labels, values, present)
    source.series_sets = [
        SeriesSet(series_set.times, [label], series_set.values[n : n + 1], present[n : n + 1])
        for n, label in enumerate(labels)
    ]
    return source


def samples(query: str, times: "np.ndarray[tuple[int], np.dtype[np.int64]]", source: MemorySource) -> dict[object, str]:
    value = evaluate(query, times, source).value
    assert isinstance(value, Vector)
    return {
        (labels, int(times[step])): f"{value.values[row, step]:.9g}"
        for row, labels in enumerate(value.labels)
        for step in np.flatnonzero(value.present[row])
    }


@pytest.mark.parametrize("query", QUERIES)
@given(rows=st.lists(series, min_size=1, max_size=4))
@settings(max_examples=8, deadline=None)
def test_each_step_of_a_range_query_equals_an_instant_query(query: str, rows: list[list[float | None]]) -> None:
    source = source_of(rows)
    times = grid(0, 200_000, 17_000)
    at_once = samples(query, times, source)
    one_by_one: dict[object, str] = {}
    for at in times:
        one_by_one |= samples(query, np.array([at]), source)
    assert at_once == one_by_one


@given(rows=st.lists(series, min_size=2, max_size=4))
@settings(max_examples=15, deadline=None)
def test_series_in_one_block_equal_series_in_their_own(rows: list[list[float | None]]) -> None:
    apart = source_of(rows)
    together = MemorySource()
    series_sets = apart.series_sets
    values, present = (
        np.concatenate([getattr(series_set, name) for series_set in series_sets]) for name in ("values", "present")
    )
    together.series_sets = [
        SeriesSet(series_sets[0].times, [series_set.labels[0] for series_set in series_sets], values, present)
    ]
    times = grid(0, 200_000, 17_000)
    for query in QUERIES:
        assert samples(query, times, apart) == samples(query, times, together)


@given(rows=st.lists(series, min_size=2, max_size=4))
@settings(max_examples=8, deadline=None)
def test_series_with_clocks_of_their_own_equal_series_in_their_own_blocks(rows: list[list[float | None]]) -> None:
    """Clocks differ by seconds, one of them has fewer times, and labels are columns."""
    apart, together = source_of(rows), MemorySource()
    for number, series_set in enumerate(apart.series_sets):
        series_set.times = series_set.times[: 20 - number] + 700 * number
        assert series_set.present is not None
        series_set.values, series_set.present = (
            series_set.values[:, : 20 - number],
            series_set.present[:, : 20 - number],
        )
    clocks = np.full((len(rows), 20), NO_TIME, dtype=np.int64)
    values, present = np.zeros((len(rows), 20)), np.zeros((len(rows), 20), dtype=bool)
    for number, series_set in enumerate(apart.series_sets):
        clocks[number, : 20 - number] = series_set.times
        values[number, : 20 - number] = series_set.values[0]
        present[number, : 20 - number] = (
            ~np.isnan(series_set.values[0]) if series_set.present is None else series_set.present[0]
        )
    table = LabelTable.of(series_set.labels[0] for series_set in apart.series_sets)
    together.series_sets = [SeriesSet(clocks, table, values, present, np.arange(len(rows)))]
    for times in (grid(0, 200_000, 17_000), grid(95_000, 150_000, 10_000)):  # also a step that is one interval
        for query in QUERIES:
            assert samples(query, times, apart) == samples(query, times, together)


def test_selector_that_a_query_repeats_is_read_once() -> None:
    """Unless its samples are those of other times."""

    class CountingSource(MemorySource):
        reads = 0

        def select(self, matchers: tuple[Matcher, ...], start_ms: int, end_ms: int) -> list[SeriesSet]:
            self.reads += 1
            return super().select(matchers, start_ms, end_ms)

    source, times = CountingSource(), grid(0, 100_000, 10_000)
    source.series_sets = source_of([[1.0] * 20]).series_sets
    for query, reads in (("x / (x + x)", 1), ("x - x offset 20s", 2), ('x + {__name__=~"x"}', 2)):
        source.reads = 0
        assert len(samples(query, times, source)) == (9 if "offset" in query else 11)
        assert source.reads == reads


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("rate(x)", QuerySyntaxError),
        ("x[5m", QuerySyntaxError),
        ("(" * 5000 + "x" + ")" * 5000, QuerySyntaxError),
        ("-" * 5000 + "x", QuerySyntaxError),
        ("x" * 100_000, QuerySyntaxError),
        ("histogram_count(x)", NotSupported),
        ("increase(x[1m] anchored)", NotSupported),
        ("x smoothed", NotSupported),
        ("x </ 2", NotSupported),
        ("rate(x[1m-60s])", QuerySyntaxError),
        ("rate(x[step()])", QuerySyntaxError),
        ("rate(x[1m/0])", QuerySyntaxError),
        ("rate(x[1m+])", QuerySyntaxError),
        ("rate(x[9^9^9])", QuerySyntaxError),
        ("rate(x[(0-1)^0.5])", QuerySyntaxError),
        ("x offset (1m", QuerySyntaxError),
        ("x offset (y())", QuerySyntaxError),
        ("rate(x[" + "-" * 150 + "1])", None),
        ("x{a='smoothed </'", QuerySyntaxError),
        ("[(" * 5_000, QuerySyntaxError),
        ('x{a="b" or c="d"}', NotSupported),
        ('count_values("", x)', None),
        ('info(x, {a=~".*"})', None),
        ('info(x, y{a="(", b="}"})', None),
        ("info(x, {", QuerySyntaxError),
        ("x @ -5", None),
        ("topk(NaN, x)", EvaluationFailed),
        ("max_over_time(x[100y:1ms])", EvaluationFailed),
    ],
)
def test_query_that_cannot_be_served_fails_with_a_name(query: str, error: type[PromqlError] | None) -> None:
    source = source_of([[1.0] * 20])
    if error is None:
        evaluate(query, np.array([100_000]), source)
        return
    with pytest.raises(error) as raised:
        evaluate(query, np.array([100_000]), source)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("query", "start_ms", "end_ms"),
    [
        ("info(x)", 3_300_000, 7_200_000),
        ("info(x offset 1m)", 3_240_000, 7_140_000),
        ("info(x offset 1m + y)", 3_300_000, 7_200_000),
        ("info(x @ 600)", 300_000, 600_000),
        ("info(max_over_time(x[1m:10s] offset 1m))", 3_240_000, 7_140_000),
        ("info(x offset 1m or vector(1))", 3_300_000, 7_200_000),
        ("info(clamp_min(x offset 1m, scalar(y)))", 3_240_000, 7_140_000),
    ],
)
def test_info_reads_labels_at_the_times_of_its_argument(query: str, start_ms: int, end_ms: int) -> None:
    found = required_samples(query, 3_600_000, 7_200_000)
    (labels,) = [each for each in found if each.matchers[0].value == "target_info"]
    assert (labels.start_ms, labels.end_ms) == (start_ms, end_ms)


def test_samples_are_limited() -> None:
    source = source_of([[1.0] * 20] * 4)
    with pytest.raises(EvaluationFailed, match="too many samples"):
        evaluate("x", grid(0, 200_000, 1000), source, Limits(max_samples=50))


def test_steps_are_limited() -> None:
    with pytest.raises(QuerySyntaxError, match="exceeded maximum resolution of 11,000 points"):
        grid(0, 10**9, 1)


def test_required_samples_cover_offsets_ranges_and_subqueries() -> None:
    found = required_samples("rate(x[5m] offset 1m) + max_over_time(y[1h:1m]) + z @ 60", 3_600_000, 7_200_000)
    assert [(each.matchers[0].value, each.start_ms, each.end_ms) for each in found] == [
        ("x", 3_600_000 - 360_000, 7_200_000 - 60_000),
        ("y", 3_600_000 - 3_600_000 - 300_000, 7_200_000),
        ("z", 60_000 - 300_000, 60_000),
    ]


DEEP_QUERIES = {
    "operators": "1" + "+1" * 9_999,
    "powers": "1" + "^1" * 9_999,
    "words": "a" + " or a" * 3_999,
    "signs": "- " * 9_000 + "1",
    "parentheses": "(" * 9_000 + "1" + ")" * 9_000,
    "after brackets in a string": f'label_replace(a, "x", "{")" * 6_000}", "y", "") or {"(" * 6_000}1{")" * 6_000}',
    "after a quote in a comment": '# "\n1' + "+1" * 9_000 + '# "',
}


@pytest.mark.parametrize("query", DEEP_QUERIES.values(), ids=DEEP_QUERIES)
def test_deep_query_is_refused_before_it_is_parsed(query: str) -> None:
    """The parser is recursive: such a query ended the process."""
    with pytest.raises(QuerySyntaxError, match="nested levels"):
        required_samples(query, 0, 1000)


@pytest.mark.parametrize("query", ["(" * 199 + "x" + ")" * 199, "1" + "+1" * 199, "abs(" * 199 + "x" + ")" * 199])
def test_query_within_the_limit_is_evaluated(query: str) -> None:
    required_samples(query, 0, 1000)
    evaluate(query, grid(0, 1000, 1000), MemorySource())


@pytest.mark.parametrize("query", ["count_over_time(vector(1)[500d:1s])", "rate(x[1m])[500d:1s]", "x"])
def test_computed_values_are_limited(query: str) -> None:
    """A few bytes of a query must not take gigabytes, whatever the number of samples."""
    inner = query if query.startswith(("count", "x")) else f"max_over_time({query})"
    with pytest.raises(EvaluationFailed, match="would compute more than"):
        evaluate(inner, grid(0, 1_000_000, 100), source_of([[1.0] * 20] * 200), Limits(max_cells=1_000_000))


@pytest.mark.parametrize(
    ("query", "metrics"),
    [
        ("sum(x) / on() y", {"x", "y"}),
        ("timestamp(x)", {"x"}),
        ("x + rate(x[5m])", set()),
        ("y + rate(x[5m])", {"y"}),
        ("x offset 5m + y @ 10 + z", {"z"}),
        ("max_over_time(x[5m:1m]) + y", {"y"}),
        ("x + rate({__name__=~'x|y'}[5m])", set()),
        ("vector(1)", set()),
    ],
)
def test_metrics_of_which_only_the_latest_samples_are_needed(query: str, metrics: set[str]) -> None:
    assert metrics_at_steps(query) == metrics


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (r'"\xc3\xbf"', "ÿ"),
        (r'"\303\277 \x41"', "ÿ A"),
        (r"'\\xff'", "\\xff"),
        (r"`\xff`", "\\xff"),
        (r'"\u00ff"', "ÿ"),
    ],
)
def test_bytes_in_strings_are_characters(literal: str, text: str) -> None:
    source = MemorySource()
    source.series_sets.append(
        SeriesSet(np.array([0], dtype=np.int64), [labels_of({"__name__": "x", "a": text})], np.ones((1, 1)))
    )
    value = evaluate(f"x{{a={literal}}}", grid(0, 0, 1), source).value
    assert isinstance(value, Vector)
    assert len(value.labels) == 1


def test_string_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(QuerySyntaxError, match="not valid UTF-8"):
        evaluate(r'label_replace(x, "\xff", "", "src", "(.*)")', grid(0, 0, 1), MemorySource())


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9])
def test_ratio_and_its_complement_choose_every_series_once(ratio: float) -> None:
    source = MemorySource()
    labels = [labels_of({"__name__": "x", "node": str(number)}) for number in range(200)]
    source.series_sets = [SeriesSet(np.array([0], dtype=np.int64), [each], np.ones((1, 1))) for each in labels]
    one, other = (evaluate(f"limit_ratio({share}, x)", grid(0, 0, 1), source).value for share in (ratio, ratio - 1))
    assert isinstance(one, Vector)
    assert isinstance(other, Vector)
    assert sorted((*one.labels, *other.labels)) == sorted(labels)
    assert abs(len(one.labels) - 200 * ratio) < 30


@pytest.mark.parametrize("query", ["quantile(0.5, x)", "topk(2, x)", "limitk(1, x)", "sum(x)", "stddev(x)", "x + x"])
def test_operators_on_nothing_return_nothing(query: str) -> None:
    value = evaluate(query, grid(0, 60_000, 60_000), MemorySource()).value
    assert isinstance(value, Vector)
    assert len(value.labels) == 0
