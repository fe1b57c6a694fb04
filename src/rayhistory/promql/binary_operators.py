"""Binary operators: arithmetic, comparisons and sets, with vector matching."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from rayhistory.promql.aggregations import Grouping, grouping
from rayhistory.promql.arrays import Floats, Mask
from rayhistory.promql.label_table import LabelTable
from rayhistory.promql.labels import METRIC_NAME, Labels, format_labels, labels_of, without_name
from rayhistory.promql.query_errors import EvaluationFailed
from rayhistory.promql.values import (
    Scalar,
    Vector,
    concatenate,
    concatenated_labels,
    group_positions,
    join_rows,
    unique_rows,
)

ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "%": np.fmod, "^": np.power, "atan2": np.arctan2,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Floats, Floats], Mask]] = {
    "==": np.equal, "!=": np.not_equal, ">": np.greater, "<": np.less, ">=": np.greater_equal, "<=": np.less_equal,
}  # fmt: skip
SET_OPERATORS = frozenset(("and", "or", "unless"))

_NOT_EXPLICIT = "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
_NOT_UNIQUE = "multiple matches for labels: grouping labels must ensure unique matches"


class Matching(msgspec.Struct):
    """The rule by which series of two vectors are paired."""

    key: Grouping
    many_side: str = ""
    """The side with many series: `left` or `right` for group_left and group_right; empty for one-to-one."""
    included: tuple[str, ...] = ()
    """Labels that the many side takes from the one side."""
    is_on: bool = False
    fill_left: float | None = None
    fill_right: float | None = None


def matching_key(names: Sequence[str] | None, *, is_on: bool) -> Grouping:
    return grouping(list(names or ()), without=not is_on)


def matching_of(modifier: Any) -> Matching:
    """Return the matching of a parsed operator."""
    if modifier is None:
        return Matching(matching_key(None, is_on=False))
    clause = modifier.matching
    is_on = clause is not None and str(clause.type).endswith("Include")
    names = list(clause.labels) if clause is not None else []
    card = str(modifier.card).rpartition(".")[2]
    fill = modifier.fill_values
    return Matching(
        matching_key(names, is_on=is_on),
        {"ManyToOne": "left", "OneToMany": "right"}.get(card, ""),
        tuple(modifier.group_labels or ()),
        is_on,
        getattr(fill, "lhs", None) if fill is not None else None,
        getattr(fill, "rhs", None) if fill is not None else None,
    )


def scalars(operator: str, left: Scalar, right: Scalar) -> Scalar:
    with np.errstate(all="ignore"):
        if operator in COMPARISONS:
            return Scalar(COMPARISONS[operator](left.values, right.values).astype(float))
        return Scalar(ARITHMETIC[operator](left.values, right.values))


def vector_and_scalar(operator: str, vector: Vector, scalar: Scalar, *, swapped: bool, return_bool: bool) -> Vector:
    """Apply an operator to each sample and a scalar. The scalar is on the left if `swapped`."""
    left, right = (scalar.values, vector.values) if swapped else (vector.values, scalar.values)
    with np.errstate(all="ignore"):
        if operator not in COMPARISONS:
            return Vector(vector.labels, ARITHMETIC[operator](left, right), vector.present).drop_names()
        matches = COMPARISONS[operator](left, right)
    if return_bool:
        return Vector(vector.labels, matches.astype(float), vector.present).drop_names()
    return Vector(vector.labels, vector.values, vector.present & matches)


def combine_sets(operator: str, left: Vector, right: Vector, key: Grouping) -> Vector:
    steps = left.values.shape[1]
    if operator == "or":
        absent = _absent_mask(left, key, steps)
        present = right.present & _masks(right.labels, lambda labels: absent(key(labels)), steps)
        return unique_rows(concatenate([left, Vector(right.labels, right.values, present)], steps))
    absent = _absent_mask(right, key, steps)
    masks = _masks(left.labels, lambda labels: absent(key(labels)), steps)
    present = left.present & (masks if operator == "unless" else ~masks)
    return Vector(left.labels, left.values, present)


def _masks(labels: Sequence[Labels], mask: Callable[[Labels], Mask], steps: int) -> Mask:
    return np.array([mask(each) for each in labels], dtype=bool).reshape(-1, steps)


def _absent_mask(vector: Vector, key: Grouping, steps: int) -> Callable[[Labels], Mask]:
    """Return a function of a key. It returns the steps at which no series with this key has a sample."""
    existing: dict[Labels, Mask] = {}
    for labels, present in zip(vector.labels, vector.present, strict=True):
        group = key(labels)
        existing[group] = existing[group] | present if group in existing else present
    nowhere = np.zeros(steps, dtype=bool)
    return lambda group: ~existing.get(group, nowhere)


def vectors(operator: str, left: Vector, right: Vector, matching: Matching, *, return_bool: bool) -> Vector:
    """Apply an arithmetic or comparison operator to pairs of series with the same key."""
    swapped = matching.many_side == "right"
    many, one = (right, left) if swapped else (left, right)
    fill_many, fill_one = matching.fill_left, matching.fill_right  # not swapped for group_right, as in Prometheus 3.15
    operation = _Operation(operator, matching, swapped=swapped, return_bool=return_bool)
    steps = many.values.shape[1]
    if (pairs := _unique_pairs(left, right, matching)) is not None:
        return operation.of_all(*pairs)
    ones = _one_side(one, matching.key, "left" if swapped else "right")
    nowhere = np.zeros(steps, dtype=bool)
    matched: dict[Labels, Mask] = {}
    for row, labels in enumerate(many.labels):
        group = matching.key(labels)
        found = ones.get(group)
        if found is None and fill_one is None:
            continue
        other_labels, values, present = found or ((), np.zeros(steps), nowhere)
        if fill_one is not None:
            values, present = np.where(present, values, fill_one), np.ones(steps, dtype=bool)
        earlier = matched.get(group, nowhere)
        if not matching.many_side and (earlier & many.present[row] & present).any():
            raise EvaluationFailed(_NOT_EXPLICIT)
        matched[group] = earlier | many.present[row]
        operation.add(_Row(labels, many.values[row], many.present[row]), _Row(other_labels, values, present))
    if fill_many is not None:
        for group, (other_labels, values, present) in ones.items():
            missing = present & ~matched.get(group, nowhere)
            operation.add(_Row(group, np.full(steps, fill_many), missing), _Row(other_labels, values, missing))
    return operation.result(steps)


def _unique_pairs(left: Vector, right: Vector, matching: Matching) -> tuple[Vector, Vector] | None:
    """Return the series that have a partner, in the same order; None if that is not the simple case.

    In the simple case, no two series of a side have the same key, so that all pairs can be computed at once.
    """
    if matching.many_side or matching.fill_left is not None or matching.fill_right is not None:
        return None
    keys = [matching.key.of_all(side.labels) for side in (left, right)]
    _, position = group_positions(concatenated_labels(keys))
    left_position, right_position = np.split(position, [len(left.labels)])
    partner = np.full(len(position), -1, dtype=np.intp)
    partner[right_position] = np.arange(len(right_position))
    if np.unique(left_position).size < len(left_position) or np.count_nonzero(partner >= 0) < len(right_position):
        return None
    rows = np.flatnonzero(partner[left_position] >= 0)
    return left.rows(rows), right.rows(partner[left_position[rows]])


def _one_side(vector: Vector, key: Grouping, side: str) -> dict[Labels, tuple[Labels, Floats, Mask]]:
    """Return the series of the side whose keys must be unique at each step."""
    groups: dict[Labels, list[int]] = {}
    all_labels = list(vector.labels)
    for row, labels in enumerate(all_labels):
        groups.setdefault(key(labels), []).append(row)
    found = {}
    for group, rows in groups.items():
        joined = join_rows(vector, np.array(rows))
        if joined is None:
            step = int(np.flatnonzero(vector.present[rows].sum(axis=0) > 1)[0])
            names = [format_labels(all_labels[row]) for row in rows if vector.present[row, step]][:2]
            raise EvaluationFailed(
                f"found duplicate series for the match group {format_labels(group)} on the {side} hand-side of the "
                f"operation: [{', '.join(names)}];"
                "many-to-many matching not allowed: matching labels must be unique on one side"
            )
        found[group] = (all_labels[rows[0]], *joined)
    return found


class _Row(msgspec.Struct):
    """One series of a vector."""

    labels: Labels
    values: Floats
    present: Mask


class _Operation:
    """Collects the results of pairs of series."""

    def __init__(self, operator: str, matching: Matching, *, swapped: bool, return_bool: bool) -> None:
        self._operator = operator
        self._matching = matching
        self._swapped = swapped
        self._return_bool = return_bool
        self._labels: list[Labels] = []
        self._values: list[Floats] = []
        self._present: list[Mask] = []

    def of_all(self, left: Vector, right: Vector) -> Vector:
        """Apply the operator to each row of `left` and the row of `right` at the same position."""
        if not left.labels:
            return concatenate([], left.values.shape[1])
        values, present = self._computed(left.values, right.values, left.present & right.present)
        labels = self._result_keys(left.labels)
        return self._unique(Vector(labels, values, present))

    def _result_keys(self, labels: Sequence[Labels]) -> Sequence[Labels]:
        """Return the labels of the results without group_left and group_right."""
        if not isinstance(labels, LabelTable):
            return [self._result_labels(each, ()) for each in labels]
        drops_name = self._operator in ARITHMETIC or self._return_bool
        table = labels.without([METRIC_NAME]) if drops_name else labels
        names = self._matching.key.names
        return table.only(names) if self._matching.is_on else table.without(names - {METRIC_NAME})

    def add(self, many: _Row, one: _Row) -> None:
        left, right = (one.values, many.values) if self._swapped else (many.values, one.values)
        values, present = self._computed(left, right, many.present & one.present)
        self._labels.append(self._result_labels(many.labels, one.labels))
        self._values.append(values)
        self._present.append(present)

    def _computed(self, left: Floats, right: Floats, present: Mask) -> tuple[Floats, Mask]:
        with np.errstate(all="ignore"):
            if self._operator in ARITHMETIC:
                return ARITHMETIC[self._operator](left, right), present
            matches = COMPARISONS[self._operator](left, right)
        return (matches.astype(float), present) if self._return_bool else (left, present & matches)

    def _result_labels(self, labels: Labels, other_labels: Labels) -> Labels:
        matching = self._matching
        if self._operator in ARITHMETIC or self._return_bool:
            labels = without_name(labels)
        if not matching.many_side:
            key = matching.key(labels)
            return key if matching.is_on else _with_name(key, labels)
        if not matching.included:
            return labels
        values, other = dict(labels), dict(other_labels)
        for name in matching.included:
            values[name] = other.get(name, "")
        return labels_of(values)

    def result(self, steps: int) -> Vector:
        if not self._labels:
            return concatenate([], steps)
        return self._unique(Vector(self._labels, np.array(self._values), np.array(self._present)))

    def _unique(self, vector: Vector) -> Vector:
        try:
            return unique_rows(vector)
        except EvaluationFailed:
            raise EvaluationFailed(_NOT_UNIQUE if self._matching.many_side else _NOT_EXPLICIT) from None


def _with_name(key: Labels, labels: Labels) -> Labels:
    """Return the key with the metric's name, if the operator kept it."""
    names = tuple(pair for pair in labels if pair[0] == METRIC_NAME)
    return tuple(sorted((*key, *names)))
