"""Answer the queries of Grafana variables from samples that are already loaded."""

from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.promql.engine import evaluate, grid
from rayhistory.promql.labels import Labels
from rayhistory.promql.matchers import matchers_of
from rayhistory.promql.query_errors import PromqlError
from rayhistory.promql.syntax import parse
from rayhistory.promql.values import Vector


class StoredSeries:
    """Answers queries of variables as of the end of the shown time range."""

    def __init__(self, querier: SampleQuerier, end_ms: int) -> None:
        self._querier = querier
        self._end_ms = end_ms

    def label_values(self, selector: str, label: str) -> list[str]:
        try:
            matchers = matchers_of(parse(selector)) if selector else ()
        except PromqlError:
            return []
        return sorted(self._querier.label_values(matchers, label))

    def query_result(self, query: str) -> list[tuple[Labels, float]]:
        try:
            value = evaluate(query, grid(self._end_ms, self._end_ms, 1), self._querier).value
        except PromqlError:
            return []
        if not isinstance(value, Vector):
            return []
        return [(labels, float(value.values[row, 0])) for row, labels in enumerate(value.labels)]
