"""Stored samples for PromQL, with the labels that Prometheus would add in a scrape."""

from collections.abc import Iterator, Sequence

import numpy as np

from rayhistory.metrics.sample_tiles import SampleTile, TileClocks, TileMetric, constant
from rayhistory.metrics.series_join import TiledMetric, join
from rayhistory.promql.label_table import LabelTable
from rayhistory.promql.labels import METRIC_NAME, Labels
from rayhistory.promql.matchers import Matcher
from rayhistory.promql.values import SeriesSet
from rayhistory.sessions import SessionRef

_JOB = "ray"


class SampleQuerier:
    """Selects series from tiles, up to `until_ms`. A tile may have only the metrics that a query needs."""

    def __init__(self, ref: SessionRef, tiles: Sequence[SampleTile], until_ms: int) -> None:
        self._until_ms = until_ms
        self._tiles = tiles
        self._common = {"job": _JOB, "SessionName": ref.session, "ray_io_cluster": ref.cluster}
        self._addresses: dict[str, str] = {}
        for tile in tiles:
            for node, address in zip(tile.clocks.nodes, tile.clocks.addresses, strict=True):
                self._addresses[node] = self._addresses.get(node) or address

    def select(self, matchers: tuple[Matcher, ...], start_ms: int, end_ms: int) -> list[SeriesSet]:
        end_ms = min(end_ms, self._until_ms)
        tiled: dict[str, list[TiledMetric]] = {}
        for tile in self._tiles:
            if tile.clocks.first_ms <= end_ms and tile.clocks.last_ms >= start_ms:
                for name, series in self._matching(tile, matchers):
                    tiled.setdefault(name, []).append((tile.clocks, series))
        return [series_set for each in tiled.values() if (series_set := join(each, start_ms, end_ms))]

    def labels(self, matchers: tuple[Matcher, ...] = ()) -> Iterator[Labels]:
        """Yield the labels of matching series, possibly more than once."""
        for tile in self._tiles:
            for _, series in self._matching(tile, matchers):
                yield from series.labels

    def label_names(self, matchers: tuple[Matcher, ...] = ()) -> set[str]:
        tables = [series.labels for tile in self._tiles for _, series in self._matching(tile, matchers)]
        return {name for table in tables for name in table.columns if table.values_of(name) - {""}}

    def label_values(self, matchers: tuple[Matcher, ...], label: str) -> set[str]:
        tables = [series.labels for tile in self._tiles for _, series in self._matching(tile, matchers)]
        return set().union(*(table.values_of(label) for table in tables)) - {""}

    def _matching(self, tile: SampleTile, matchers: tuple[Matcher, ...]) -> Iterator[tuple[str, TileMetric]]:
        """Yield the series of a tile that match, by metric."""
        predicates = [(each.name, each.predicate()) for each in matchers]
        is_name = [predicate for name, predicate in predicates if name == METRIC_NAME]
        for metric in (name for name in tile.metrics if all(predicate(name) for predicate in is_name)):
            series = self._labelled(tile.clocks, tile.metrics[metric], metric)
            rows = np.ones(len(series.labels), dtype=bool)
            for name, predicate in predicates:
                if name != METRIC_NAME:
                    rows &= series.labels.where(name, predicate)
            if rows.any():
                yield metric, series.chosen(rows)

    def _labelled(self, clocks: TileClocks, metric: TileMetric, name: str) -> TileMetric:
        """Add the labels of a scrape. They replace labels of the series with the same name."""
        numbers: dict[str, int] = {}
        instance = [numbers.setdefault(self._addresses[node] or node, len(numbers)) for node in clocks.nodes]
        codes = np.array(instance, dtype=np.int32)[metric.clock]
        labels: LabelTable = metric.labels.with_label("instance", list(numbers), codes)
        for label, text in {**self._common, METRIC_NAME: name}.items():
            labels = labels.with_label(label, *constant(text, len(labels)))
        return TileMetric(labels, metric.clock, metric.values)
