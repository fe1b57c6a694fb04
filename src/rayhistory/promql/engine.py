"""Evaluate a PromQL query over stored samples.

    selections = samples_at(query, times)      # the caller loads these
    result = evaluate(query, times, source)

All steps are evaluated at once: each part of the query yields arrays with one column per step.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import promql_parser as nodes

from rayhistory.promql import aggregations, binary_operators, instant_functions, ratio_sample
from rayhistory.promql.arrays import Floats, Times
from rayhistory.promql.label_table import LabelTable, without_names
from rayhistory.promql.labels import METRIC_NAME, Labels, metric_name
from rayhistory.promql.matchers import Matcher, matchers_of
from rayhistory.promql.query_errors import EvaluationFailed, NotSupported, PromqlError, QuerySyntaxError
from rayhistory.promql.range_functions import KEEPS_NAME, KERNELS, NEEDS_COUNTER, PARAMETER_KERNELS, Result
from rayhistory.promql.range_vectors import range_vector
from rayhistory.promql.selectors import Windows, latest_samples, latest_times
from rayhistory.promql.selectors import windows as split_windows
from rayhistory.promql.syntax import (
    SampleSelection,
    fixed_time_ms,
    milliseconds,
    offset_ms,
    parse,
    selections,
    without_parentheses,
)
from rayhistory.promql.values import Scalar, SeriesSet, Text, Value, Vector, concatenate, type_name, unique_rows
from rayhistory.promql.vector_functions import FUNCTIONS, one_series

LOOKBACK_MS = 300_000
MAX_STEPS = 11_000
ANY_TIMES: Times = np.arange(0, 3_600_001, 60_000, dtype=np.int64)
"""Times for checks of a query that is not evaluated. Only durations such as `[step()]` depend on them."""
MAX_SAMPLES = 50_000_000
MAX_CELLS = 10_000_000
"""Maximum number of computed values of one query (series times steps), because each operation creates such an array."""
_DEFAULT_SUBQUERY_STEP_MS = 60_000
_CACHED_SELECTIONS = 256
_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


class SampleSource(Protocol):
    def select(self, matchers: tuple[Matcher, ...], start_ms: int, end_ms: int) -> list[SeriesSet]:
        """Return the matching series with their samples between two times, both inclusive."""


class QueryResult(msgspec.Struct):
    times: Times
    value: Value
    warnings: list[str]
    infos: list[str]


class Limits(msgspec.Struct, frozen=True):
    lookback_ms: int = LOOKBACK_MS
    max_samples: int = MAX_SAMPLES
    max_cells: int = MAX_CELLS


def grid(start_ms: int, end_ms: int, step_ms: int) -> Times:
    """Return the times of a range query's steps."""
    if step_ms <= 0:
        raise QuerySyntaxError("zero or negative query resolution step widths are not accepted. Try a positive integer")
    if end_ms < start_ms:
        raise QuerySyntaxError("end timestamp must not be before start time")
    if (end_ms - start_ms) // step_ms > MAX_STEPS:
        raise QuerySyntaxError(
            f"exceeded maximum resolution of {MAX_STEPS:,} points per timeseries. "
            "Try decreasing the query resolution (?step=XX)"
        )
    return np.arange(start_ms, end_ms + 1, step_ms, dtype=np.int64)


@lru_cache(maxsize=_CACHED_SELECTIONS)
def required_samples(query: str, start_ms: int, end_ms: int, *, step_ms: int = 0) -> tuple[SampleSelection, ...]:
    """List the samples that an evaluation reads, so that they can be loaded beforehand."""
    node = parse(query, step_ms, end_ms - start_ms)
    return tuple(selections(node, start_ms, end_ms, LOOKBACK_MS, _DEFAULT_SUBQUERY_STEP_MS))


def samples_at(query: str, times: Times) -> tuple[SampleSelection, ...]:
    """List the samples that an evaluation at these times reads."""
    return required_samples(query, int(times[0]), int(times[-1]), step_ms=step_of(times))


def step_of(times: Times) -> int:
    return int(times[1] - times[0]) if times.size > 1 else 0


def named_metrics(query: str, times: Times = ANY_TIMES) -> list[str] | None:
    """Return the metrics that a query reads; None if it does not name them or cannot be parsed."""
    try:
        named = [_names(each) for each in samples_at(query, times)]
    except PromqlError:
        return None
    return sorted({name for names in named for name in names}) if all(named) else None


def metrics_at_steps(query: str, times: Times = ANY_TIMES) -> frozenset[str]:
    """Return the metrics for which a query needs only the latest sample at each of its steps."""
    needed = samples_at(query, times)
    if not all(map(_names, needed)):  # a selector without a name may read any of the others
        return frozenset()
    at_steps = {name for each in needed if each.is_at_steps for name in _names(each)}
    return frozenset(at_steps.difference(name for each in needed if not each.is_at_steps for name in _names(each)))


def _names(selection: SampleSelection) -> list[str]:
    return [each.value for each in selection.matchers if (each.name, each.operator) == (METRIC_NAME, "=")]


def evaluate(query: str, times: Times, source: SampleSource, limits: Limits | None = None) -> QueryResult:
    """Evaluate a query at these times, which are evenly spaced."""
    node = parse(query, step_of(times), int(times[-1] - times[0]))
    named = Counter(each.matchers for each in samples_at(query, times))
    repeated = frozenset(matchers for matchers, count in named.items() if count > 1)
    evaluation = Evaluation(times, source, limits or Limits(), repeated)
    if times.size == 1 and isinstance(without_parentheses(node), nodes.MatrixSelector | nodes.SubqueryExpr):
        value: Value = range_vector(evaluation.windows(node, times))
    else:
        value = evaluation.evaluate(node, times)
    if isinstance(value, Vector):
        value = _without_empty_rows(unique_rows(value))
    return QueryResult(times, value, sorted(evaluation.warnings), sorted(evaluation.infos))


def _without_empty_rows(vector: Vector) -> Vector:
    rows = [int(row) for row in np.flatnonzero(vector.present.any(axis=1))]
    return vector if len(rows) == len(vector.labels) else vector.rows(rows)


class Evaluation:
    def __init__(
        self, times: Times, source: SampleSource, limits: Limits, repeated: frozenset[tuple[Matcher, ...]] = frozenset()
    ) -> None:
        self.query_times = int(times[0]), int(times[-1])
        self.step_ms = step_of(times)
        self._source = source
        self._limits = limits
        self._samples = 0
        self._cells = 0
        self._repeated = repeated
        self._selected: dict[tuple[tuple[Matcher, ...], bytes], Vector] = {}
        """Results of selectors that the query has more than once, such as the total in `a / (a + b)`."""
        self.warnings: set[str] = set()
        self.infos: set[str] = set()

    def evaluate(self, node: Any, times: Times) -> Value:
        evaluate = self._NODES.get(type(node))
        if evaluate is None:
            raise NotSupported(f"{type(node).__name__} is not supported in this place")
        return evaluate(self, node, times)

    def note(self, message: str) -> None:
        (self.infos if message.startswith("PromQL info") else self.warnings).add(message)

    def vector(self, node: Any, times: Times) -> Vector:
        value = self.evaluate(node, times)
        if not isinstance(value, Vector):
            raise QuerySyntaxError(f"expected type vector, got {type_name(value)}")
        return value

    def scalar(self, node: Any, times: Times) -> Floats:
        value = self.evaluate(node, times)
        if not isinstance(value, Scalar):
            raise QuerySyntaxError(f"expected type scalar, got {type_name(value)}")
        return value.values

    def text(self, node: Any, times: Times) -> str:
        value = self.evaluate(node, times)
        if not isinstance(value, Text):
            raise QuerySyntaxError(f"expected type string, got {type_name(value)}")
        return value.value

    # Leaves

    def _number(self, node: Any, times: Times) -> Scalar:
        return Scalar(np.full(times.size, node.val))

    def _string(self, node: Any, times: Times) -> Text:
        return Text(node.val)

    def _parentheses(self, node: Any, times: Times) -> Value:
        return self.evaluate(node.expr, times)

    def _negate(self, node: Any, times: Times) -> Value:
        value = self.evaluate(node.expr, times)
        if isinstance(value, Scalar):
            return Scalar(-value.values)
        if isinstance(value, Vector):
            return Vector(value.labels, -value.values, value.present).drop_names()
        raise QuerySyntaxError("unary operator on a string")

    def _ends(self, node: Any, times: Times) -> Times:
        """Return the evaluation times of a selector: the steps, shifted by `@` and `offset`."""
        fixed = fixed_time_ms(node, *self.query_times)
        times = np.full_like(times, fixed) if fixed is not None else times
        return times - offset_ms(node)

    def _select(self, matchers: tuple[Matcher, ...], ends: Times, range_ms: int) -> list[SeriesSet]:
        series_sets = self._source.select(matchers, int(ends.min()) - range_ms, int(ends.max()))
        self._charge(sum(series_set.values.size for series_set in series_sets))
        return series_sets

    def _charge(self, samples: int) -> None:
        self._samples += samples
        if self._samples > self._limits.max_samples:
            raise EvaluationFailed("query processing would load too many samples into memory in query execution")

    def _charge_cells(self, series: int, steps: int) -> None:
        self._cells += series * steps
        if self._cells > self._limits.max_cells:
            raise EvaluationFailed(
                f"query would compute more than {self._limits.max_cells:,} values: "
                "use a larger step, a shorter range or fewer series"
            )

    def _selector(self, node: Any, times: Times) -> Vector:
        matchers, ends = matchers_of(node), self._ends(node, times)
        if matchers not in self._repeated:
            return latest_samples(*self.latest(matchers, ends))
        key = matchers, ends.tobytes()
        found = self._selected.get(key)
        if found is None:
            found = self._selected[key] = latest_samples(*self.latest(matchers, ends))
        return found

    def sample_times(self, node: Any, times: Times) -> Vector:
        """Return the times of the samples that a selector finds, in seconds."""
        return latest_times(*self.latest(matchers_of(node), self._ends(node, times)))

    def latest(self, matchers: tuple[Matcher, ...], ends: Times) -> tuple[list[SeriesSet], Times, int]:
        """Select series of which only the latest sample at each end is used. Return arguments of `latest_samples`."""
        series_sets = self._select(matchers, ends, self._limits.lookback_ms)
        self._charge_cells(sum(len(series_set.labels) for series_set in series_sets), ends.size)
        return series_sets, ends, self._limits.lookback_ms

    def windows(self, node: Any, times: Times) -> list[Windows]:
        node = without_parentheses(node)
        if isinstance(node, nodes.MatrixSelector):
            ends, range_ms = self._ends(node.vector_selector, times), milliseconds(node.range)
            series_sets = self._select(matchers_of(node.vector_selector), ends, range_ms)
            self._charge_cells(sum(len(series_set.labels) for series_set in series_sets), times.size)
            return list(split_windows(series_sets, times, ends, range_ms))
        if isinstance(node, nodes.SubqueryExpr):
            return self._subquery(node, times)
        raise QuerySyntaxError("expected a range vector")

    def _subquery(self, node: Any, times: Times) -> list[Windows]:
        """Evaluate the inner expression on a grid whose times are multiples of its step."""
        ends, range_ms = self._ends(node, times), milliseconds(node.range)
        step = milliseconds(node.step) if node.step is not None else _DEFAULT_SUBQUERY_STEP_MS
        if step <= 0:
            raise QuerySyntaxError("zero or negative subquery resolution step widths are not accepted")
        first = (int(ends.min()) - range_ms) // step * step + step
        last = int(ends.max())
        if last < first:
            return []
        self._charge_cells(1, (last - first) // step + 1)
        inner_times = np.arange(first, last + 1, step, dtype=np.int64)
        value = self.evaluate(node.expr, inner_times)
        if isinstance(value, Scalar):
            value = Vector([()], value.values[None, :], np.ones((1, inner_times.size), dtype=bool))
        if not isinstance(value, Vector):
            raise QuerySyntaxError("subquery is only allowed on an instant vector")
        value = unique_rows(value)
        self._charge_cells(len(value.labels), times.size)
        return list(
            split_windows([SeriesSet(inner_times, value.labels, value.values, value.present)], times, ends, range_ms)
        )

    def _matrix(self, node: Any, times: Times) -> Value:
        raise QuerySyntaxError(
            'invalid expression type "range vector" for range query, must be Scalar or instant Vector'
        )

    # Operators

    def _binary(self, node: Any, times: Times) -> Value:
        operator, modifier = str(node.op), node.modifier
        left, right = self.evaluate(node.lhs, times), self.evaluate(node.rhs, times)
        return_bool = bool(modifier and modifier.return_bool)
        if isinstance(left, Scalar) and isinstance(right, Scalar):
            return binary_operators.scalars(operator, left, right)
        if isinstance(left, Vector) and isinstance(right, Scalar):
            return binary_operators.vector_and_scalar(operator, left, right, swapped=False, return_bool=return_bool)
        if isinstance(left, Scalar) and isinstance(right, Vector):
            return binary_operators.vector_and_scalar(operator, right, left, swapped=True, return_bool=return_bool)
        if not isinstance(left, Vector) or not isinstance(right, Vector):
            raise QuerySyntaxError(f"operator {operator} is not defined on strings")
        matching = binary_operators.matching_of(modifier)
        if operator in binary_operators.SET_OPERATORS:
            return binary_operators.combine_sets(operator, left, right, matching.key)
        return binary_operators.vectors(operator, left, right, matching, return_bool=return_bool)

    def _aggregate(self, node: Any, times: Times) -> Vector:
        operator, modifier = str(node.op), node.modifier
        without = modifier is not None and str(modifier.type).endswith("Without")
        group = aggregations.grouping(list(modifier.labels) if modifier else [], without=without)
        vector = self.vector(node.expr, times)
        if operator in aggregations.SIMPLE_OPERATORS:
            return aggregations.aggregate(operator, vector, group)
        if operator == "count_values":
            return aggregations.count_values(vector, group, self.text(node.param, times))
        parameter = self.scalar(node.param, times)
        if operator in ("topk", "bottomk"):
            return aggregations.select_extremes(vector, group, parameter, largest=operator == "topk")
        if operator == "quantile":
            self.check_quantiles(parameter)
            return aggregations.quantile(vector, group, parameter)
        if operator == "limitk":
            return aggregations.limit(vector, group, parameter)
        if operator == "limit_ratio":
            return ratio_sample.limit_ratio(vector, self.capped_ratio(parameter))
        raise NotSupported(f"aggregation {operator} is not supported")

    def check_quantiles(self, parameter: Floats) -> None:
        outside = parameter[~((parameter >= 0) & (parameter <= 1))]
        if outside.size:
            self.note(f"PromQL warning: quantile value should be between 0 and 1, got {outside[0]:g}")

    def capped_ratio(self, parameter: Floats) -> Floats:
        outside = parameter[np.abs(parameter) > 1]
        if outside.size:
            limit = np.sign(outside[0])
            self.note(
                f"PromQL warning: ratio value should be between -1 and 1, got {outside[0]:g}, capping to {limit:g}"
            )
        return np.clip(parameter, -1, 1)

    # Functions

    def _call(self, node: Any, times: Times) -> Value:
        name, arguments = node.func.name, list(node.args)
        if name in KERNELS:
            return self._range_function(name, arguments[0], times, KERNELS[name])
        if name in PARAMETER_KERNELS:
            return self._range_function_with_parameters(name, arguments, times)
        if name in instant_functions.MATH:
            return self.map(self.vector(arguments[0], times), instant_functions.MATH[name])
        if name in instant_functions.DATES:
            vector = self.vector(arguments[0], times) if arguments else one_series(times / 1000)
            return self.map(vector, instant_functions.DATES[name])
        function = FUNCTIONS.get(name)
        if function is None:
            raise NotSupported(f"function {name}() is not supported")
        return function(self, arguments, times)

    def map(self, vector: Vector, function: Callable[[Floats], Floats]) -> Vector:
        with np.errstate(all="ignore"):
            values = np.where(np.isnan(vector.values), vector.values, function(vector.values))
        return Vector(vector.labels, values, vector.present).drop_names()

    def _range_function(self, name: str, node: Any, times: Times, kernel: Callable[[Windows], Result]) -> Vector:
        results = []
        for each in self.windows(node, times):
            values, present = kernel(each)
            labels = each.labels if name in KEEPS_NAME else without_names(each.labels)
            results.append(Vector(labels, values, present))
            if name in NEEDS_COUNTER and each.counts.any():
                self._check_counters(each.labels)
        return unique_rows(concatenate(results, times.size))

    def _range_function_with_parameters(self, name: str, arguments: list[Any], times: Times) -> Vector:
        is_range = [isinstance(without_parentheses(a), nodes.MatrixSelector | nodes.SubqueryExpr) for a in arguments]
        parameters = [
            self.scalar(argument, times) for argument, skip in zip(arguments, is_range, strict=True) if not skip
        ]
        if name == "quantile_over_time":
            self.check_quantiles(parameters[0])
        kernel = PARAMETER_KERNELS[name]
        return self._range_function(name, arguments[is_range.index(True)], times, lambda each: kernel(each, parameters))

    def _check_counters(self, labels: Sequence[Labels]) -> None:
        distinct = labels.only([METRIC_NAME]).groups()[0] if isinstance(labels, LabelTable) else labels
        for name in {metric_name(each) for each in distinct}:
            if name and not name.endswith(_COUNTER_SUFFIXES):
                self.note(
                    "PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "
                    f'"{name}"'
                )

    _NODES: ClassVar[dict[type, Callable[["Evaluation", Any, Times], Value]]] = {
        nodes.NumberLiteral: _number, nodes.StringLiteral: _string, nodes.ParenExpr: _parentheses,
        nodes.UnaryExpr: _negate, nodes.VectorSelector: _selector, nodes.MatrixSelector: _matrix,
        nodes.SubqueryExpr: _matrix, nodes.BinaryExpr: _binary, nodes.AggregateExpr: _aggregate, nodes.Call: _call,
    }  # fmt: skip
