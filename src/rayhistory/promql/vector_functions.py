"""Functions of instant vectors and scalars that need more than a formula for each value."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import promql_parser as nodes

from rayhistory.promql import aggregations, instant_functions, label_functions
from rayhistory.promql.arrays import Floats, Mask, Times
from rayhistory.promql.histograms import Histograms, OfBuckets, bucket_fraction, bucket_quantile
from rayhistory.promql.info_labels import info
from rayhistory.promql.labels import METRIC_NAME, labels_of
from rayhistory.promql.matchers import matchers_of
from rayhistory.promql.syntax import without_parentheses
from rayhistory.promql.values import Scalar, Value, Vector, concatenate, empty_vector, unique_rows

if TYPE_CHECKING:
    from rayhistory.promql.engine import Evaluation


def _absent(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    vector = evaluation.vector(arguments[0], times)
    return _absent_series(arguments[0], ~np.any(vector.present, axis=0))


def _absent_over_time(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    exists = np.zeros(times.size, dtype=bool)
    for each in evaluation.windows(arguments[0], times):
        exists |= (each.counts > 0).any(axis=0)
    return _absent_series(arguments[0], ~exists)


def _scalar_of(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    vector = evaluation.vector(arguments[0], times)
    single = vector.present.sum(axis=0) == 1
    values = np.where(vector.present, vector.values, 0.0).sum(axis=0) if vector.labels else np.zeros(times.size)
    return Scalar(np.where(single, values, np.nan))


def _vector_of(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    return one_series(evaluation.scalar(arguments[0], times))


def _time(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(times / 1000)


def _pi(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.full(times.size, math.pi))


def _start(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.full(times.size, evaluation.query_times[0] / 1000))


def _end(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.full(times.size, evaluation.query_times[1] / 1000))


def _range(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.full(times.size, (evaluation.query_times[1] - evaluation.query_times[0]) / 1000))


def _step(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.full(times.size, evaluation.step_ms / 1000))


def _min_of(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.minimum(*(evaluation.scalar(argument, times) for argument in arguments)))


def _max_of(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Scalar:
    return Scalar(np.maximum(*(evaluation.scalar(argument, times) for argument in arguments)))


def _timestamp(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    node = without_parentheses(arguments[0])
    if isinstance(node, nodes.VectorSelector):
        return evaluation.sample_times(node, times).drop_names()
    vector = evaluation.vector(node, times)
    return Vector(vector.labels, np.broadcast_to(times / 1000, vector.values.shape), vector.present).drop_names()


def _round(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    nearest = evaluation.scalar(arguments[1], times) if len(arguments) > 1 else np.ones(times.size)
    return evaluation.map(evaluation.vector(arguments[0], times), lambda v: instant_functions.round_to(v, nearest))


def _clamp(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    low, high = evaluation.scalar(arguments[1], times), evaluation.scalar(arguments[2], times)
    return _clamped(evaluation, arguments[0], times, low, high)


def _clamp_min(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    return _clamped(
        evaluation, arguments[0], times, evaluation.scalar(arguments[1], times), np.full(times.size, np.inf)
    )


def _clamp_max(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    return _clamped(
        evaluation, arguments[0], times, np.full(times.size, -np.inf), evaluation.scalar(arguments[1], times)
    )


def _clamped(evaluation: "Evaluation", node: Any, times: Times, low: Floats, high: Floats) -> Vector:
    vector = evaluation.vector(node, times)
    with np.errstate(all="ignore"):
        values = instant_functions.clamp(vector.values, low, high)
    return Vector(vector.labels, values, vector.present & ~(low > high)).drop_names()


def _label_replace(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    target, replacement, source, pattern = (evaluation.text(argument, times) for argument in arguments[1:])
    return label_functions.label_replace(evaluation.vector(arguments[0], times), target, replacement, source, pattern)


def _label_join(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    target, separator, *sources = (evaluation.text(argument, times) for argument in arguments[1:])
    return label_functions.label_join(evaluation.vector(arguments[0], times), target, separator, sources)


def _check_order(evaluation: "Evaluation", times: Times) -> None:
    if times.size > 1:
        evaluation.note(
            "PromQL warning: sort is ineffective for range queries since results are always ordered by labels"
        )


def _sort(evaluation: "Evaluation", arguments: list[Any], times: Times, *, descending: bool = False) -> Vector:
    """Sort rows of an instant query by value; NaN comes last. Range queries have no order."""
    _check_order(evaluation, times)
    vector = evaluation.vector(arguments[0], times)
    last = vector.values[:, -1] if vector.labels else np.empty(0)
    sign = -1 if descending else 1
    return vector.rows(sorted(range(len(last)), key=lambda row: (math.isnan(last[row]), sign * last[row])))


def _sort_desc(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    return _sort(evaluation, arguments, times, descending=True)


def _sort_by_label(evaluation: "Evaluation", arguments: list[Any], times: Times, *, descending: bool = False) -> Vector:
    _check_order(evaluation, times)
    names = [evaluation.text(argument, times) for argument in arguments[1:]]
    return label_functions.sorted_by_labels(evaluation.vector(arguments[0], times), names, descending=descending)


def _sort_by_label_desc(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    return _sort_by_label(evaluation, arguments, times, descending=True)


def _histogram_quantile(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    quantile = evaluation.scalar(arguments[0], times)
    evaluation.check_quantiles(quantile)
    histograms = Histograms(evaluation.vector(arguments[1], times), "histogram_quantile", evaluation.note)
    return histograms.map(_quantile_of_buckets(quantile))


def _histogram_quantiles(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    histograms = Histograms(evaluation.vector(arguments[0], times), "histogram_quantiles", evaluation.note)
    label = evaluation.text(arguments[1], times)
    results = []
    for argument in arguments[2:]:
        quantile = evaluation.scalar(argument, times)
        evaluation.check_quantiles(quantile)
        found = histograms.map(_quantile_of_buckets(quantile))
        text = _quantile_label(float(quantile[0]))
        found.labels = [labels_of(dict(labels) | {label: text}) for labels in found.labels]
        results.append(found)
    return unique_rows(concatenate(results, times.size))


def _histogram_fraction(evaluation: "Evaluation", arguments: list[Any], times: Times) -> Vector:
    low, high = evaluation.scalar(arguments[0], times), evaluation.scalar(arguments[1], times)
    histograms = Histograms(evaluation.vector(arguments[2], times), "histogram_fraction", evaluation.note)
    return histograms.map(
        lambda bounds, counts, step: bucket_fraction(bounds, counts, float(low[step]), float(high[step]))
    )


def _quantile_of_buckets(quantile: Floats) -> OfBuckets:
    return lambda bounds, counts, step: bucket_quantile(bounds, counts, float(quantile[step]))


def _quantile_label(quantile: float) -> str:
    """Format a quantile as OpenMetrics does: whole numbers have a decimal."""
    text = aggregations.format_value(quantile)
    return f"{text}.0" if text.lstrip("-").isdecimal() else text


def one_series(values: Floats) -> Vector:
    return Vector([()], values[None, :], np.ones((1, values.size), dtype=bool))


def _absent_series(node: Any, absent: Mask) -> Vector:
    """Return one series with the labels of the selector's equality matchers, at steps without a matching series."""
    node = without_parentheses(node)
    if isinstance(node, nodes.MatrixSelector):
        node = node.vector_selector
    if not absent.any():
        return empty_vector(absent.size)
    names: dict[str, str] = {}
    if isinstance(node, nodes.VectorSelector):
        matchers = [matcher for matcher in matchers_of(node) if matcher.name != METRIC_NAME]
        repeated = {m.name for m in matchers if sum(other.name == m.name for other in matchers) > 1}
        names = {m.name: m.value for m in matchers if m.operator == "=" and m.name not in repeated}
    return Vector([labels_of(names)], np.ones((1, absent.size)), absent[None, :])


FUNCTIONS: dict[str, Callable[["Evaluation", list[Any], Times], Value]] = {
    "absent": _absent, "absent_over_time": _absent_over_time, "scalar": _scalar_of, "vector": _vector_of,
    "time": _time, "pi": _pi, "start": _start, "end": _end, "range": _range, "step": _step, "min_of": _min_of,
    "max_of": _max_of, "timestamp": _timestamp, "round": _round, "clamp": _clamp, "clamp_min": _clamp_min,
    "clamp_max": _clamp_max, "label_replace": _label_replace, "label_join": _label_join, "sort": _sort,
    "sort_desc": _sort_desc, "sort_by_label": _sort_by_label, "sort_by_label_desc": _sort_by_label_desc,
    "histogram_quantile": _histogram_quantile, "histogram_quantiles": _histogram_quantiles,
    "histogram_fraction": _histogram_fraction, "info": info,
}  # fmt: skip
