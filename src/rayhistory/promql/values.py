"""Values of PromQL expressions, for all steps of a query at once.

A query is evaluated on a grid of times (one for an instant query). A vector has one row per series and one column per
step; `present` tells which samples exist, because NaN is an ordinary value.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from rayhistory.promql.arrays import Floats, Mask, Rows, Times
from rayhistory.promql.label_table import LabelTable, concatenate_tables, without_names
from rayhistory.promql.labels import Labels
from rayhistory.promql.query_errors import EvaluationFailed


class SeriesSet(msgspec.Struct):
    """Stored series that share their times. `present` is None if every series has a sample at every time.

    A missing sample marks the series as stale at that time, as in a Prometheus scrape without the series. If series of
    several nodes have different times, `times` has a row per clock, padded with `NO_TIME`, and `clock` is the row of
    each series.
    """

    times: Times
    labels: Sequence[Labels]
    values: Floats
    present: Mask | None = None
    clock: Rows | None = None


NO_TIME = 2**62


class Vector(msgspec.Struct):
    labels: Sequence[Labels]
    values: Floats
    present: Mask

    def rows(self, positions: Sequence[int] | Rows) -> "Vector":
        index = np.asarray(positions, dtype=np.intp)
        labels = self.labels
        chosen = labels.take(index) if isinstance(labels, LabelTable) else [labels[position] for position in positions]
        return Vector(chosen, self.values[index], self.present[index])

    def drop_names(self) -> "Vector":
        return unique_rows(Vector(without_names(self.labels), self.values, self.present))


class Scalar(msgspec.Struct):
    values: Floats


class Text(msgspec.Struct):
    value: str


class RangeVector(msgspec.Struct):
    """The samples of each series in a time range: labels, times and values."""

    rows: list[tuple[Labels, Times, Floats]]

    @property
    def samples(self) -> int:
        return sum(times.size for _, times, _ in self.rows)


Value: TypeAlias = Vector | Scalar | Text | RangeVector
_TYPE_NAMES: dict[type, str] = {Vector: "vector", Scalar: "scalar", Text: "string", RangeVector: "matrix"}


def empty_vector(steps: int) -> Vector:
    return Vector([], np.empty((0, steps)), np.empty((0, steps), dtype=bool))


def concatenate(vectors: Sequence[Vector], steps: int) -> Vector:
    vectors = [vector for vector in vectors if vector.labels]
    if not vectors:
        return empty_vector(steps)
    if len(vectors) == 1:
        return vectors[0]
    return Vector(
        concatenated_labels([vector.labels for vector in vectors]),
        np.concatenate([vector.values for vector in vectors]),
        np.concatenate([vector.present for vector in vectors]),
    )


def concatenated_labels(parts: Sequence[Sequence[Labels]]) -> Sequence[Labels]:
    tables = [part for part in parts if isinstance(part, LabelTable)]
    if len(tables) == len(parts):
        return concatenate_tables(tables)
    return [labels for part in parts for labels in part]


def label_order(labels: Sequence[Labels]) -> list[int]:
    """Return the positions of label sets in ascending order."""
    if isinstance(labels, LabelTable):
        ordered: list[int] = labels.sorted_rows().tolist()
        return ordered
    return sorted(range(len(labels)), key=labels.__getitem__)


def group_positions(labels: Sequence[Labels]) -> tuple[Sequence[Labels], Rows]:
    """Return the distinct label sets in order of first occurrence, and for each row the position of its label set."""
    if isinstance(labels, LabelTable):
        return labels.groups()
    numbers: dict[Labels, int] = {}
    positions = [numbers.setdefault(each, len(numbers)) for each in labels]
    return list(numbers), np.array(positions, dtype=np.intp)


def group_rows(labels: Sequence[Labels]) -> tuple[Sequence[Labels], list[Rows]]:
    """Return the distinct label sets in order of first occurrence, each with the rows that have it."""
    if not labels:
        return [], []
    unique, position = group_positions(labels)
    order = np.argsort(position, kind="stable")
    return unique, np.split(order, np.cumsum(np.bincount(position, minlength=len(unique)))[:-1])


def unique_rows(vector: Vector) -> Vector:
    """Join rows with equal labels. Two samples at the same step are an error, as in Prometheus."""
    labels = vector.labels
    if labels.are_unique() if isinstance(labels, LabelTable) else len(set(labels)) == len(labels):
        return vector
    unique, groups = group_rows(labels)
    values, present = [], []
    for rows in groups:
        joined = join_rows(vector, rows)
        if joined is None:
            raise EvaluationFailed("vector cannot contain metrics with the same labelset")
        values.append(joined[0])
        present.append(joined[1])
    return Vector(unique, np.array(values), np.array(present))


def join_rows(vector: Vector, rows: Rows) -> tuple[Floats, Mask] | None:
    """Join rows into one; None if two of them have a sample at the same step."""
    if len(rows) == 1:
        return vector.values[rows[0]], vector.present[rows[0]]
    present = vector.present[rows]
    if (present.sum(axis=0) > 1).any():
        return None
    values: Floats = np.where(present, vector.values[rows], 0.0).sum(axis=0)
    return values, np.any(present, axis=0)


def type_name(value: Value) -> str:
    """Return the name of a value's type in PromQL's error messages."""
    return _TYPE_NAMES[type(value)]
