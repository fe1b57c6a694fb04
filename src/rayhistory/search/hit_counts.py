"""Counts of matching lines per file, and over time in a limited number of steps."""

from collections import Counter
from collections.abc import Iterable

import msgspec

MAX_BUCKETS = 120
_STEPS_MS = [
    1000 * seconds
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800, 4 * 604_800, 52 * 604_800, 520 * 604_800)
]
"""Steps of a histogram. Each is a multiple of the previous one, so that buckets can be added up."""


class TimeHistogram:
    """Number of lines per time step. The step grows with the time range."""

    def __init__(self, times: Iterable[int] = ()) -> None:
        self.buckets: Counter[int] = Counter()
        self._step = 0
        for ms in times:
            self.add(ms)

    @property
    def step_ms(self) -> int:
        return _STEPS_MS[self._step]

    def add(self, ms: int, count: int = 1) -> None:
        self.buckets[ms // self.step_ms * self.step_ms] += count
        while len(self.buckets) > MAX_BUCKETS and self._step + 1 < len(_STEPS_MS):
            self._coarsen(self._step + 1)

    def merge(self, other: "TimeHistogram") -> None:
        self._coarsen(max(self._step, other._step))
        for ms, count in other.buckets.items():
            self.add(ms, count)

    def _coarsen(self, step: int) -> None:
        self._step, finer = step, self.buckets
        self.buckets = Counter()
        for ms, count in finer.items():
            self.buckets[ms // self.step_ms * self.step_ms] += count


class HitCounter(msgspec.Struct):
    """The counts of a search so far."""

    files: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Number of matching lines, by node and path."""
    times: TimeHistogram = msgspec.field(default_factory=TimeHistogram)
    complete: bool = False
    """True if all lines were counted."""

    def add(self, node: str, path: str, count: int, times: TimeHistogram) -> None:
        if count:
            self.files[node, path] += count
            self.times.merge(times)

    def nodes(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (node, _), count in self.files.items():
            counts[node] += count
        return counts
