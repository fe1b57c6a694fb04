"""Values of PromQL expressions, for all steps of a query at once.

A query is evaluated on a grid of times (one for an instant query). A vector has one row per series and one column per
step; `present` tells which samples exist, because NaN is an ordinary value.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rayhistory.promql.query_errors import EvaluationFailed

Floats: TypeAlias = NDArray[np.float64]
Times: TypeAlias = NDArray[np.int64]
"""Milliseconds since 1970."""
Mask: TypeAlias = NDArray[np.bool_]
Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted pairs without empty values, including `__name__`."""

METRIC_NAME = "__name__"


def labels_of(pairs: dict[str, str] | Iterable[tuple[str, str]]) -> Labels:
    items = pairs.items() if isinstance(pairs, dict) else pairs
    return tuple(sorted((name, value) for name, value in items if value))


def without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != METRIC_NAME)


def metric_name(labels: Labels) -> str:
    return next((value for name, value in labels if name == METRIC_NAME), "")


def format_labels(labels: Labels) -> str:
    """Return labels as Prometheus prints them in messages."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"


class SeriesBlock(msgspec.Struct):
    """Stored series that share their times. `present` is None if every series has a sample at every time.

    A missing sample marks the series as stale at that time, as a scrape without the series does in Prometheus.
    """

    times: Times
    labels: list[Labels]
    values: Floats
    present: Mask | None = None


class Vector(msgspec.Struct):
    labels: list[Labels]
    values: Floats
    present: Mask

    def rows(self, positions: Sequence[int]) -> "Vector":
        index = np.asarray(positions, dtype=np.intp)
        return Vector([self.labels[position] for position in positions], self.values[index], self.present[index])

    def drop_names(self) -> "Vector":
        return unique_rows(Vector([without_name(labels) for labels in self.labels], self.values, self.present))


class Scalar(msgspec.Struct):
    values: Floats


class Text(msgspec.Struct):
    value: str


Value: TypeAlias = Vector | Scalar | Text


def empty_vector(steps: int) -> Vector:
    return Vector([], np.empty((0, steps)), np.empty((0, steps), dtype=bool))


def concatenate(vectors: Sequence[Vector], steps: int) -> Vector:
    vectors = [vector for vector in vectors if vector.labels]
    if not vectors:
        return empty_vector(steps)
    return Vector(
        [labels for vector in vectors for labels in vector.labels],
        np.concatenate([vector.values for vector in vectors]),
        np.concatenate([vector.present for vector in vectors]),
    )


def unique_rows(vector: Vector) -> Vector:
    """Join rows with equal labels. Two samples at the same step are an error, as in Prometheus."""
    if len(set(vector.labels)) == len(vector.labels):
        return vector
    positions: dict[Labels, list[int]] = {}
    for position, labels in enumerate(vector.labels):
        positions.setdefault(labels, []).append(position)
    values, present = [], []
    for rows in positions.values():
        joined = join_rows(vector, rows)
        if joined is None:
            raise EvaluationFailed("vector cannot contain metrics with the same labelset")
        values.append(joined[0])
        present.append(joined[1])
    return Vector(list(positions), np.array(values), np.array(present))


def join_rows(vector: Vector, rows: Sequence[int]) -> tuple[Floats, Mask] | None:
    """Join rows into one; None if two of them have a sample at the same step."""
    if len(rows) == 1:
        return vector.values[rows[0]], vector.present[rows[0]]
    present = vector.present[list(rows)]
    if (present.sum(axis=0) > 1).any():
        return None
    values: Floats = np.where(present, vector.values[list(rows)], 0.0).sum(axis=0)
    return values, np.any(present, axis=0)
