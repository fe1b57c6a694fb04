"""What variables of a dashboard ask for, from samples that are loaded already."""

from rayhistory.metrics.sample_blocks import SampleBlocks
from rayhistory.promql.engine import evaluate, grid
from rayhistory.promql.matchers import LabelFilter, matchers_of
from rayhistory.promql.query_errors import PromqlError
from rayhistory.promql.syntax import parse
from rayhistory.promql.values import Labels, Vector


class StoredSeries:
    """Evaluates at the end of the shown range."""

    def __init__(self, blocks: SampleBlocks, end_ms: int) -> None:
        self._blocks = blocks
        self._end_ms = end_ms

    def label_values(self, selector: str, label: str) -> list[str]:
        try:
            matches = LabelFilter(matchers_of(parse(selector))) if selector else None
        except PromqlError:
            return []
        found = {dict(labels).get(label, "") for labels in self._blocks.labels() if matches is None or matches(labels)}
        return sorted(found - {""})

    def query_result(self, query: str) -> list[tuple[Labels, float]]:
        try:
            value = evaluate(query, grid(self._end_ms, self._end_ms, 1), self._blocks).value
        except PromqlError:
            return []
        if not isinstance(value, Vector):
            return []
        return [(labels, float(value.values[row, 0])) for row, labels in enumerate(value.labels)]
