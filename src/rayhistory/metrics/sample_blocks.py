"""Stored samples as blocks of series for PromQL, with the labels that a scraping Prometheus would have added."""

from collections.abc import Iterator
from itertools import groupby

import msgspec
import numpy as np

from rayhistory.metrics.samples import Samples
from rayhistory.promql.matchers import LabelFilter, Matcher
from rayhistory.promql.values import METRIC_NAME, Floats, Labels, SeriesBlock, Times, labels_of
from rayhistory.sessions import SessionRef

_JOB = "ray"
_ADDRESS_LABELS = ("ip", "NodeAddress", "node_ip")
"""Labels in which Ray's metrics have their node's address, the most frequent one first."""


class _NodeSamples(msgspec.Struct):
    """One stored object: the labels of its series by metric name."""

    node: str
    samples: Samples
    rows_by_name: dict[str, list[tuple[Labels, int]]]


class SampleBlocks:
    """Selects series from stored objects, up to `until_ms`.

    Times of a node whose clock was set back are sorted; of samples with the same time the last one counts.
    """

    def __init__(self, ref: SessionRef, stored: list[tuple[str, Samples]], until_ms: int) -> None:
        self._until_ms = until_ms
        common = {"job": _JOB, "SessionName": ref.session, "ray_io_cluster": ref.cluster}
        addresses = {node: _address(node, [s for n, s in stored if n == node]) for node in {n for n, _ in stored}}
        self._nodes = [_node_samples(node, s, {**common, "instance": addresses[node]}) for node, s in stored]

    def select(self, matchers: tuple[Matcher, ...], start_ms: int, end_ms: int) -> list[SeriesBlock]:
        matches = LabelFilter(matchers)
        names = LabelFilter(tuple(matcher for matcher in matchers if matcher.name == METRIC_NAME))
        blocks = []
        for _, group in groupby(self._nodes, lambda each: each.node):
            parts = [(each.samples, rows) for each in group if (rows := dict(_matching_rows(each, names, matches)))]
            if parts:
                blocks.append(_between(_join(parts), start_ms, min(end_ms, self._until_ms)))
        return [block for block in blocks if block.times.size]

    def labels(self) -> Iterator[Labels]:
        """Yield the labels of all series, possibly more than once."""
        return (labels for each in self._nodes for rows in each.rows_by_name.values() for labels, _ in rows)


def _address(node: str, stored: list[Samples]) -> str:
    """Return the address of a node as its own metrics report it, else its id."""
    for name in _ADDRESS_LABELS:
        for samples in stored:
            for series in samples.series:
                if address := series.labels.get(name):
                    return address
    return node


def _node_samples(node: str, samples: Samples, common: dict[str, str]) -> _NodeSamples:
    rows: dict[str, list[tuple[Labels, int]]] = {}
    for number, series in enumerate(samples.series):
        labels = labels_of({**series.labels, **common, METRIC_NAME: series.name})
        rows.setdefault(series.name, []).append((labels, number))
    return _NodeSamples(node, samples, rows)


def _matching_rows(each: _NodeSamples, names: LabelFilter, matches: LabelFilter) -> Iterator[tuple[Labels, int]]:
    for name, rows in each.rows_by_name.items():
        if names(((METRIC_NAME, name),)):
            yield from ((labels, row) for labels, row in rows if matches(labels))


def _join(parts: list[tuple[Samples, dict[Labels, int]]]) -> SeriesBlock:
    """Join the objects of one node in time."""
    labels = list({each: None for _, rows in parts for each in rows})
    columns = []
    for samples, rows in parts:
        values = np.full((len(labels), len(samples.times)), np.nan)
        for number, each in enumerate(labels):
            if each in rows:
                values[number] = np.frombuffer(samples.series[rows[each]].values, dtype="<f8")
        columns.append(values)
    times = np.concatenate([np.array(samples.times, dtype=np.int64) for samples, _ in parts])
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
