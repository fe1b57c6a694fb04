"""A large session is folded in parts, by ranges of task ids: what is in memory at once is then as small as is wanted.

The ids of tasks begin with bytes of a hash, so equal ranges hold about as many of them. Those of drivers and of actors'
creation all begin with ff, and are few.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

_DIGITS = 3
_VALUES = 16**_DIGITS
MOST_PARTS = 256
_TOLERANCE = 0.25
"""A part may be so much larger than it should be: every piece of it means to read its files once more."""


class _PartOf(dict[str, int]):
    """The part of each beginning of an id, which is as long as a bound; found once."""

    def __init__(self, bounds: list[str]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, beginning: str) -> int:
        self[beginning] = part = bisect_right(self._bounds, beginning)
        return part


class Parts:
    def __init__(self, number: int = 1, files: int = 0) -> None:
        self.number = max(1, min(number, MOST_PARTS))
        self._files = files or self.number
        """As many parts there were when the rows were written to files."""
        self._bounds = [f"{-(-part * _VALUES // self.number):0{_DIGITS}x}" for part in range(1, self.number)]
        """The first ids of all parts but the first."""
        self._part_of = _PartOf(self._bounds)

    def finer(self, number: int) -> "Parts":
        """About so many, if those are more: each is a piece of one of these, and its rows are in the same files."""
        times = min(math.ceil(number / self.number - _TOLERANCE), MOST_PARTS // self.number)
        return Parts(self.number * max(1, times), self._files)

    def file(self, part: int) -> int:
        """The number that the files with the rows of a part have."""
        return part * self._files // self.number

    def split(self, task_ids: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """For every part that has rows, their places."""
        part_of = self._part_of
        places: list[list[int]] = [[] for _ in range(self.number)]
        for place, task_id in enumerate(task_ids):
            places[part_of[task_id[:_DIGITS]]].append(place)
        return ((part, found) for part, found in enumerate(places) if found)

    def between(self, low: str, high: str) -> range:
        """The parts that tasks with ids from one to the other can be in; one at least."""
        first = bisect_right(self._bounds, low)
        return range(first, max(first, bisect_right(self._bounds, high)) + 1)

    def condition(self, part: int) -> str:
        """In SQL: the task is in the part."""
        terms = [f"task_id >= '{self._bounds[part - 1]}'"] if part else []
        terms += [f"task_id < '{self._bounds[part]}'"] if part < self.number - 1 else []
        return " AND ".join(terms) or "true"
