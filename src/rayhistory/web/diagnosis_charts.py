"""Charts of a diagnosis as plain shapes: tasks by state over time, and findings on the time axis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

CHART_WIDTH, CHART_HEIGHT = 1_000, 160
_MAX_MARKS = 60
_MIN_MARK_WIDTH = 3.0


class StateBar(msgspec.Struct, frozen=True):
    """One rectangle of the stacked chart."""

    state: str
    x: float
    y: float
    width: float
    height: float


class FindingMark(msgspec.Struct, frozen=True):
    """One finding on the time axis."""

    number: int
    severity: str
    headline: str
    x: float
    width: float


class TimedFinding(Protocol):
    @property
    def headline(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def first_ms(self) -> int | None: ...
    @property
    def last_ms(self) -> int | None: ...


def state_bars(states: Mapping[str, Sequence[int]]) -> list[StateBar]:
    """Return the rectangles of tasks by state over time, running tasks at the bottom."""
    bins = max((len(counts) for counts in states.values()), default=0)
    most = max((sum(counts[number] for counts in states.values()) for number in range(bins)), default=0)
    return list(_bars(states, bins, most)) if most else []


def _bars(states: Mapping[str, Sequence[int]], bins: int, most: int) -> Iterator[StateBar]:
    width = CHART_WIDTH / bins
    for number in range(bins):
        top = float(CHART_HEIGHT)
        for state, counts in reversed(list(states.items())):
            height = CHART_HEIGHT * counts[number] / most
            top -= height
            if height:
                yield StateBar(state, round(number * width, 1), round(top, 1), round(width, 1), round(height, 1))


def finding_marks(findings: Sequence[TimedFinding], start_ms: int | None, end_ms: int | None) -> list[FindingMark]:
    """Return the findings with a time within the session, in order."""
    if start_ms is None or end_ms is None or end_ms <= start_ms:
        return []
    marks = [
        _mark(number, finding, start_ms, end_ms - start_ms)
        for number, finding in enumerate(findings)
        if finding.first_ms is not None
    ]
    return marks[:_MAX_MARKS]


def _mark(number: int, finding: TimedFinding, start_ms: int, span_ms: int) -> FindingMark:
    first = finding.first_ms or start_ms
    last = finding.last_ms or first
    begin, end = (min(max((at - start_ms) / span_ms, 0.0), 1.0) * CHART_WIDTH for at in (first, last))
    x = min(begin, CHART_WIDTH - _MIN_MARK_WIDTH)
    return FindingMark(number, finding.severity, finding.headline, round(x, 1), round(max(end - x, _MIN_MARK_WIDTH), 1))
