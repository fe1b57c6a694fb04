"""Join the series of several tiles in time, as one series set for PromQL."""

from collections.abc import Sequence

import numpy as np

from rayhistory.metrics.sample_tiles import TileClocks, TileMetric
from rayhistory.promql.arrays import Floats, Rows, Times
from rayhistory.promql.label_table import LabelColumn, LabelTable, concatenate_tables
from rayhistory.promql.values import NO_TIME, SeriesSet

_NODE = "\0node"
"""A column that separates series of nodes with the same address. No label has this name."""

TiledMetric = tuple[TileClocks, TileMetric]


def join(tiled: Sequence[TiledMetric], start_ms: int, end_ms: int) -> SeriesSet | None:
    """Return the series of all tiles between two times, both inclusive; None if there are none.

    If a node's clock was set back, its times are sorted. If samples have the same time, the last one is used.
    """
    tiled = sorted(tiled, key=lambda each: each[0].hour)
    if not tiled or not any(len(metric.labels) for _, metric in tiled):
        return None
    if len(tiled) == 1:
        clocks, metric = tiled[0]
        return _between(clocks.times, metric.labels, metric.clock, metric.values, (start_ms, end_ms))
    nodes = {node: number for number, node in enumerate(dict.fromkeys(n for clocks, _ in tiled for n in clocks.nodes))}
    tables = [_with_node(clocks, metric, nodes) for clocks, metric in tiled]
    unique, position = concatenate_tables(tables).groups()
    times, values = _laid_out(tiled, nodes, position, len(unique))
    clock = unique.columns[_NODE].codes.astype(np.intp)
    order_of_nodes = {text: number for number, text in enumerate(unique.columns[_NODE].texts)}
    clock = np.array([nodes.get(text, 0) for text in order_of_nodes], dtype=np.intp)[clock]
    times, values = _in_order(times, values, clock)
    return _between(times, unique.without([_NODE]), clock, values, (start_ms, end_ms))


def _with_node(clocks: TileClocks, metric: TileMetric, nodes: dict[str, int]) -> LabelTable:
    column = LabelColumn(clocks.nodes, metric.clock.astype(np.int32))
    return metric.labels.with_label(_NODE, column.texts, column.codes)


def _laid_out(tiled: Sequence[TiledMetric], nodes: dict[str, int], position: Rows, size: int) -> tuple[Times, Floats]:
    """Put the tiles of each hour after those of the previous hour."""
    widths: dict[tuple[int, int], int] = {}
    keys = []
    seen: dict[int, list[set[str]]] = {}
    for clocks, _ in tiled:  # tiles of one hour share columns, unless they have the same nodes
        layers = seen.setdefault(clocks.hour, [])
        own = set(clocks.nodes)
        layer = next((number for number, others in enumerate(layers) if not others & own), len(layers))
        if layer == len(layers):
            layers.append(set())
        layers[layer] |= own
        keys.append((clocks.hour, layer))
        widths[keys[-1]] = max(widths.get(keys[-1], 0), clocks.times.shape[1])
    starts = dict(zip(sorted(widths), np.cumsum([0, *(widths[key] for key in sorted(widths))]).tolist(), strict=False))
    total = sum(widths.values())
    times, values = np.full((len(nodes), total), NO_TIME, dtype=np.int64), np.full((size, total), np.nan)
    done = 0
    for (clocks, metric), key in zip(tiled, keys, strict=True):
        columns = slice(starts[key], starts[key] + clocks.times.shape[1])
        times[[nodes[node] for node in clocks.nodes], columns] = clocks.times
        values[position[done : done + len(metric.labels)], columns] = metric.values
        done += len(metric.labels)
    return times, values


def _in_order(times: Times, values: Floats, clock: Rows) -> tuple[Times, Floats]:
    """Sort each clock, so that missing times are at its end."""
    gaps = np.diff(times)
    if ((gaps > 0) | (times[:, 1:] == NO_TIME)).all():
        return times, values
    order = np.argsort(times, axis=1, kind="stable")
    ordered = np.take_along_axis(times, order, axis=1)
    is_repeated = (ordered[:, :-1] == ordered[:, 1:]) & (ordered[:, :-1] < NO_TIME)
    if is_repeated.any():
        ordered[:, :-1][is_repeated] = NO_TIME
        again = np.argsort(ordered, axis=1, kind="stable")
        order, ordered = np.take_along_axis(order, again, axis=1), np.take_along_axis(ordered, again, axis=1)
    width = max(1, int((ordered < NO_TIME).sum(axis=1).max(initial=0)))
    return ordered[:, :width], np.take_along_axis(values, order[clock][:, :width], axis=1)


def _between(times: Times, labels: LabelTable, clock: Rows, values: Floats, span: tuple[int, int]) -> SeriesSet | None:
    start_ms, end_ms = span
    inside = (times >= start_ms) & (times <= end_ms)
    columns = np.flatnonzero(inside.any(axis=0))
    if not columns.size:
        return None
    chosen = slice(int(columns[0]), int(columns[-1]) + 1)
    cut = np.where(times[:, chosen] <= end_ms, times[:, chosen], NO_TIME)
    kept = np.ascontiguousarray(values[:, chosen])
    missing = np.isnan(kept)
    is_whole = not missing.any() or not (missing & (cut < NO_TIME)[clock]).any()
    return SeriesSet(cut, labels, kept, None if is_whole else ~missing, clock)
