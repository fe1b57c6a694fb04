"""Partitions: ranges of task ids that are folded separately, to bound the memory of a fold.

Task ids begin with bytes of a hash, so ranges of equal width have about the same number of tasks. Ids of drivers and
actor creation tasks begin with ff, but there are few of them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

_BOUND_DIGITS = 3
_BOUND_VALUES = 16**_BOUND_DIGITS
MAX_PARTITIONS = 256
_TOLERANCE = 0.25
"""The share by which a partition may exceed its size, because each further partition reads the same files again."""


class _PartitionByPrefix(dict[str, int]):
    """A cache from prefixes of task ids to partitions. A prefix has as many digits as a bound of a partition."""

    def __init__(self, bounds: list[str]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, prefix: str) -> int:
        self[prefix] = partition = bisect_right(self._bounds, prefix)
        return partition


class Partitions:
    """A division of all task ids into ranges of equal width."""

    def __init__(self, count: int = 1, file_count: int = 0) -> None:
        self.count = max(1, min(count, MAX_PARTITIONS))
        self._file_count = file_count or self.count
        """The number of partitions when the rows were written to files."""
        self._bounds = [
            f"{-(-partition * _BOUND_VALUES // self.count):0{_BOUND_DIGITS}x}" for partition in range(1, self.count)
        ]
        """The lowest id of each partition, from the second one on."""
        self._partition_by_prefix = _PartitionByPrefix(self._bounds)

    def finer(self, count: int) -> "Partitions":
        """Split each partition so that there are about `count` in total.

        The rows of the new partitions are in the same files.
        """
        times = min(math.ceil(count / self.count - _TOLERANCE), MAX_PARTITIONS // self.count)
        return Partitions(self.count * max(1, times), self._file_count)

    def file_number(self, partition: int) -> int:
        """Return the partition number in the names of the files that have this partition's rows."""
        return partition * self._file_count // self.count

    def split(self, task_ids: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of each partition that has some of these ids, and their positions in `task_ids`."""
        partition_by_prefix = self._partition_by_prefix
        positions: list[list[int]] = [[] for _ in range(self.count)]
        for position, task_id in enumerate(task_ids):
            positions[partition_by_prefix[task_id[:_BOUND_DIGITS]]].append(position)
        return ((partition, found) for partition, found in enumerate(positions) if found)

    def between(self, low: str, high: str) -> range:
        """Return the partitions that may have tasks with ids from `low` to `high`. At least one is returned."""
        first = bisect_right(self._bounds, low)
        return range(first, max(first, bisect_right(self._bounds, high)) + 1)

    def bounds(self, partition: int) -> tuple[str, str]:
        """Return the lowest id of the partition, and a text above its highest id and below the next partition."""
        low = self._bounds[partition - 1] if partition else ""
        if partition == self.count - 1:
            return low, "g"
        return low, f"{int(self._bounds[partition], 16) - 1:0{_BOUND_DIGITS}x}g"

    def condition(self, partition: int) -> str:
        """Return the SQL condition that selects the tasks of the partition."""
        terms = [f"task_id >= '{self._bounds[partition - 1]}'"] if partition else []
        terms += [f"task_id < '{self._bounds[partition]}'"] if partition < self.count - 1 else []
        return " AND ".join(terms) or "true"
