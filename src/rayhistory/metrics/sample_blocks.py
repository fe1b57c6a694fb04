"""Stored samples as blocks of series for PromQL, with the labels that a scraping Prometheus would have added."""

from collections.abc import Iterator
from itertools import groupby

import msgspec
import numpy as np

from rayhistory.metrics.indexed_samples import IndexedSamples, RowsByName
from rayhistory.promql.matchers import LabelFilter, Matcher
from rayhistory.promql.values import METRIC_NAME, Floats, Labels, SeriesBlock, Times
from rayhistory.sessions import SessionRef

_JOB = "ray"
_COMMON_LABELS = frozenset(("job", "SessionName", "ray_io_cluster", "instance"))
"""Labels that a scraping Prometheus adds; matchers of them are tested once per object, not once per series."""


class _NodeObject(msgspec.Struct):
    """One stored object of a node, with the labels of its series by metric name."""

    node: str
    stored: IndexedSamples
    common: dict[str, str]
    """Labels that all its series have."""
    rows_by_name: RowsByName


class SampleBlocks:
    """Selects series from stored objects, up to `until_ms`.

    Times of a node whose clock was set back are sorted; of samples with the same time the last one counts.
    """

    def __init__(self, ref: SessionRef, stored: list[tuple[str, IndexedSamples]], until_ms: int) -> None:
        self._until_ms = until_ms
        common = {"job": _JOB, "SessionName": ref.session, "ray_io_cluster": ref.cluster}
        addresses: dict[str, str] = {}
        for node, each in stored:
            addresses[node] = addresses.get(node) or each.address
        self._objects = [
            _NodeObject(node, each, labels, each.rows_by_name(labels))
            for node, each in stored
            for labels in [{**common, "instance": addresses[node] or node}]
        ]

    def select(self, matchers: tuple[Matcher, ...], start_ms: int, end_ms: int) -> list[SeriesBlock]:
        names = {each.value for each in matchers if each.name == METRIC_NAME and each.operator == "="}
        if len(names) > 1:
            return []
        name = next(iter(names), None)
        is_common = LabelFilter(tuple(each for each in matchers if each.name in _COMMON_LABELS))
        others = (each for each in matchers if each.name not in _COMMON_LABELS)
        matches = LabelFilter(tuple(each for each in others if (each.name, each.operator) != (METRIC_NAME, "=")))
        end_ms = min(end_ms, self._until_ms)
        blocks = []
        for _, group in groupby(self._objects, lambda each: each.node):
            parts = [
                (each.stored, rows)
                for each in group
                if is_common(tuple(each.common.items()))
                and _overlaps(each.stored, start_ms, end_ms)
                and (rows := dict(_matching_rows(each, name, matches)))
            ]
            if parts:
                blocks.append(_between(_join(parts), start_ms, end_ms))
        return [block for block in blocks if block.times.size]

    def labels(self) -> Iterator[Labels]:
        """Yield the labels of all series, possibly more than once."""
        return (labels for each in self._objects for rows in each.rows_by_name.values() for labels, _ in rows)


def _overlaps(stored: IndexedSamples, start_ms: int, end_ms: int) -> bool:
    return stored.times.size > 0 and bool(stored.times.min() <= end_ms) and bool(stored.times.max() >= start_ms)


def _matching_rows(each: _NodeObject, name: str | None, matches: LabelFilter) -> Iterator[tuple[Labels, int]]:
    found = each.rows_by_name.values() if name is None else [each.rows_by_name.get(name, [])]
    for rows in found:
        yield from ((labels, row) for labels, row in rows if matches(labels))


def _join(parts: list[tuple[IndexedSamples, dict[Labels, int]]]) -> SeriesBlock:
    """Join the objects of one node in time."""
    labels = list({each: None for _, rows in parts for each in rows})
    columns = []
    for samples, rows in parts:
        values = np.full((len(labels), samples.times.size), np.nan)
        for number, each in enumerate(labels):
            if each in rows:
                values[number] = np.frombuffer(samples.series[rows[each]].values, dtype="<f8")
        columns.append(values)
    times = np.concatenate([samples.times for samples, _ in parts])
    times, values = _in_order(times, np.concatenate(columns, axis=1))
    return SeriesBlock(times, labels, values, ~np.isnan(values))


def _in_order(times: Times, values: Floats) -> tuple[Times, Floats]:
    if (np.diff(times) > 0).all():
        return times, values
    unique, position_from_end = np.unique(times[::-1], return_index=True)
    return unique, values[:, times.size - 1 - position_from_end]


def _between(block: SeriesBlock, start_ms: int, end_ms: int) -> SeriesBlock:
    first, last = np.searchsorted(block.times, start_ms), np.searchsorted(block.times, end_ms, side="right")
    present = None if block.present is None else block.present[:, first:last]
    return SeriesBlock(block.times[first:last], block.labels, block.values[:, first:last], present)
