"""A stored object in memory: its samples, and its series by metric name with their labels.

Labels of thousands of series take longer to build than a query takes, so they are built once per object.
"""

from functools import cached_property

import numpy as np

from rayhistory.metrics.samples import SampledSeries, Samples
from rayhistory.promql.values import METRIC_NAME, Labels, Times, labels_of

_ADDRESS_LABELS = ("ip", "NodeAddress", "node_ip")
"""Labels in which Ray's metrics have their node's address, the most frequent one first."""
_SERIES_BYTES = 900
"""Memory of a series without its values: its labels, and its entry in the index."""

RowsByName = dict[str, list[tuple[Labels, int]]]


class IndexedSamples:
    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self._share_equal_values()
        self._labelled: tuple[dict[str, str], RowsByName] | None = None

    @property
    def series(self) -> list[SampledSeries]:
        return self.samples.series

    @cached_property
    def times(self) -> Times:
        return np.array(self.samples.times, dtype=np.int64)

    @cached_property
    def address(self) -> str:
        """The address of the node as its own metrics report it; empty if they do not."""
        for name in _ADDRESS_LABELS:
            for series in self.samples.series:
                if address := series.labels.get(name):
                    return address
        return ""

    def rows_by_name(self, common: dict[str, str]) -> RowsByName:
        """Return labels and positions of all series; `common` labels are added to each."""
        if self._labelled is None or self._labelled[0] != common:
            rows: RowsByName = {}
            for number, series in enumerate(self.samples.series):
                labels = labels_of({**series.labels, **common, METRIC_NAME: series.name})
                rows.setdefault(series.name, []).append((labels, number))
            self._labelled = common, rows
        return self._labelled[1]

    def memory_bytes(self) -> int:
        values = {id(series.values): len(series.values) for series in self.samples.series}
        return sum(values.values()) + _SERIES_BYTES * len(self.samples.series) + 16 * len(self.samples.times)

    def _share_equal_values(self) -> None:
        """Keep equal columns once: most buckets of histograms, and metrics that do not change."""
        known: dict[bytes, bytes] = {}
        for series in self.samples.series:
            series.values = known.setdefault(series.values, series.values)
