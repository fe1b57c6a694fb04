"""Aggregations of instant vectors."""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from rayhistory.promql.arrays import Floats, Mask, Rows
from rayhistory.promql.label_table import LabelTable
from rayhistory.promql.labels import METRIC_NAME, Labels, labels_of
from rayhistory.promql.query_errors import EvaluationFailed
from rayhistory.promql.range_functions import exact_mean, exact_sum, quantiles
from rayhistory.promql.values import Vector, concatenate, group_positions, group_rows

_EXACT_LIMIT = 1e15


class Grouping(msgspec.Struct, frozen=True):
    """`by` or `without` some labels: maps a series' labels to those of its group."""

    names: frozenset[str]
    without: bool

    def __call__(self, labels: Labels) -> Labels:
        return tuple(pair for pair in labels if (pair[0] in self.names) != self.without)

    def of_all(self, labels: Sequence[Labels]) -> Sequence[Labels]:
        if isinstance(labels, LabelTable):
            return labels.without(self.names) if self.without else labels.only(self.names)
        return [self(each) for each in labels]


def grouping(names: list[str], *, without: bool) -> Grouping:
    return Grouping(frozenset((*names, METRIC_NAME) if without else names), without)


def groups_of(vector: Vector, group: Grouping) -> dict[Labels, Rows]:
    labels, rows = group_rows(group.of_all(vector.labels))
    return dict(zip(labels, rows, strict=True))


def aggregate(operator: str, vector: Vector, group: Grouping) -> Vector:
    """Aggregate the series of a vector by an operator that has no parameter."""
    if not vector.labels:
        return concatenate([], vector.values.shape[1])
    labels, position = group_positions(group.of_all(vector.labels))
    order = np.argsort(position, kind="stable")
    starts = np.cumsum(np.bincount(position)) - np.bincount(position)
    with np.errstate(all="ignore"):
        if operator in _SORTED_REDUCTIONS and not _needs_exact(vector.values, vector.present):
            return Vector(labels, *_reduce_sorted(operator, vector, order, starts))
        groups = np.split(order, starts[1:])
        values = [_REDUCTIONS[operator](vector.values[rows], vector.present[rows]) for rows in groups]
    return Vector(labels, np.array(values), np.array([vector.present[rows].any(axis=0) for rows in groups]))


def _reduce_sorted(operator: str, vector: Vector, order: Rows, starts: Rows) -> tuple[Floats, Mask]:
    """Reduce all groups at once. `order` lists the rows group by group; `starts` has the start of each group in it."""
    function, missing = _SORTED_REDUCTIONS[operator]
    is_sorted = len(starts) == 1 or bool((np.diff(order) == 1).all())
    values = vector.values if is_sorted else vector.values[order]
    if vector.present.all():
        sizes = np.diff(starts, append=len(order))
        counts = np.repeat(sizes[:, None], values.shape[1], axis=1).astype(np.float64)
    else:
        present = vector.present if is_sorted else vector.present[order]
        counts = np.add.reduceat(present, starts, axis=0, dtype=np.float64)
        values = np.where(present, values, missing)
    if operator == "count":
        return counts, counts > 0
    values = function.reduceat(values, starts, axis=0)
    return (values / counts if operator == "avg" else values), counts > 0


_SORTED_REDUCTIONS: dict[str, tuple[np.ufunc, float]] = {
    "sum": (np.add, 0.0), "avg": (np.add, 0.0), "min": (np.fmin, np.nan), "max": (np.fmax, np.nan),
    "count": (np.add, 0.0),
}  # fmt: skip


def _sum(values: Floats, present: Mask) -> Floats:
    if _needs_exact(values, present):
        return _each_step(values, present, exact_sum)
    total: Floats = np.where(present, values, 0.0).sum(axis=0)
    return total


def _avg(values: Floats, present: Mask) -> Floats:
    if _needs_exact(values, present):
        return _each_step(values, present, exact_mean)
    mean: Floats = _sum(values, present) / present.sum(axis=0)
    return mean


def _needs_exact(values: Floats, present: Mask) -> bool:
    if max(values.max(initial=0.0), -values.min(initial=0.0)) <= _EXACT_LIMIT:  # fast, but false if a value is NaN
        return False
    if not np.fmax.reduce(np.abs(values), axis=None, initial=0.0) > _EXACT_LIMIT:
        return False
    finite = values[present & np.isfinite(values)]
    return bool(finite.size) and float(np.abs(finite).max()) > _EXACT_LIMIT


def _each_step(values: Floats, present: Mask, function: Callable[[Floats], float]) -> Floats:
    return np.array(
        [function(column[mask]) if mask.any() else np.nan for column, mask in zip(values.T, present.T, strict=True)]
    )


def _min(values: Floats, present: Mask) -> Floats:
    lowest: Floats = np.fmin.reduce(np.where(present, values, np.nan), axis=0)
    return lowest


def _max(values: Floats, present: Mask) -> Floats:
    highest: Floats = np.fmax.reduce(np.where(present, values, np.nan), axis=0)
    return highest


def _count(values: Floats, present: Mask) -> Floats:
    return np.asarray(present.sum(axis=0), dtype=np.float64)


def _group(values: Floats, present: Mask) -> Floats:
    return np.ones(present.shape[1])


def _stdvar(values: Floats, present: Mask) -> Floats:
    counts = present.sum(axis=0)
    mean = np.where(present, values, 0.0).sum(axis=0) / counts
    variance: Floats = np.where(present, (values - mean) ** 2, 0.0).sum(axis=0) / counts
    return variance


def _stddev(values: Floats, present: Mask) -> Floats:
    return np.sqrt(_stdvar(values, present))


_REDUCTIONS: dict[str, Callable[[Floats, Mask], Floats]] = {
    "sum": _sum, "avg": _avg, "min": _min, "max": _max, "count": _count, "group": _group,
    "stddev": _stddev, "stdvar": _stdvar,
}  # fmt: skip
SIMPLE_OPERATORS = frozenset(_REDUCTIONS)


def quantile(vector: Vector, group: Grouping, parameter: Floats) -> Vector:
    groups = groups_of(vector, group)
    steps = vector.values.shape[1]
    values, present = np.full((len(groups), steps), np.nan), np.zeros((len(groups), steps), dtype=bool)
    for number, rows in enumerate(groups.values()):
        mask = vector.present[rows]
        present[number] = mask.any(axis=0)
        for step in np.flatnonzero(present[number]):
            chosen = vector.values[rows, step][mask[:, step]]
            values[number, step] = quantiles(chosen[None, :], float(parameter[step]))[0]
    return Vector(list(groups), values, present)


def select_extremes(vector: Vector, group: Grouping, parameter: Floats, *, largest: bool) -> Vector:
    """Keep the k largest or smallest samples of each group and step. Rows are ordered by their last value."""
    present = np.zeros_like(vector.present)
    rank = np.full(vector.present.shape, math.inf)
    counts = _counts(parameter)
    for rows in groups_of(vector, group).values():
        for step in range(vector.values.shape[1]):
            existing = [row for row in rows if vector.present[row, step]]
            existing.sort(key=lambda row: _extreme_order(float(vector.values[row, step]), largest=largest))
            for position, row in enumerate(existing[: counts[step]]):
                present[row, step] = True
                rank[row, step] = position
    kept = [int(row) for row in np.flatnonzero(present.any(axis=1))]
    kept.sort(key=lambda row: (group(vector.labels[row]), rank[row, -1]))
    return Vector(vector.labels, vector.values, present).rows(kept)


def _extreme_order(value: float, *, largest: bool) -> tuple[bool, float]:
    return (math.isnan(value), -value if largest else value)


def limit(vector: Vector, group: Grouping, parameter: Floats) -> Vector:
    """Keep the first k samples of each group and step."""
    present = np.zeros_like(vector.present)
    counts = _counts(parameter)
    for rows in groups_of(vector, group).values():
        order = np.cumsum(vector.present[rows], axis=0)
        present[rows] = vector.present[rows] & (order <= np.array(counts))
    kept = [int(row) for row in np.flatnonzero(present.any(axis=1))]
    return Vector(vector.labels, vector.values, present).rows(kept)


def _counts(parameter: Floats) -> list[int]:
    if np.isnan(parameter).any():
        raise EvaluationFailed("Parameter value is NaN")
    if (np.abs(parameter) >= 2**63).any():
        value = parameter[np.abs(parameter) >= 2**63][0]
        raise EvaluationFailed(f"Scalar value {value:g} {'over' if value > 0 else 'under'}flows int64")
    return [max(0, int(value)) for value in parameter]


def count_values(vector: Vector, group: Grouping, label: str) -> Vector:
    """Count equal values of each group; the value becomes a label."""
    steps = vector.values.shape[1]
    found: dict[Labels, Floats] = {}
    for key, rows in groups_of(vector, group).items():
        for row in rows:
            for step in np.flatnonzero(vector.present[row]):
                named = dict(key) | {label: format_value(float(vector.values[row, step]))}
                found.setdefault(labels_of(named), np.zeros(steps))[step] += 1
    if not found:
        return concatenate([], steps)
    values = np.array(list(found.values()))
    return Vector(list(found), values, values > 0)


def format_value(value: float) -> str:
    """Format a float as Go does: shortest digits, no exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, trim="-")
