"""Short lists of ranges of generations. They show which objects to read again if a part of an index is lost.

An object belongs to the generations for which it was read. The index of a session that runs for months has a million
generations. If there are too many ranges, neighbouring ranges are joined. A rebuild of the part then reads a few more
objects than necessary.
"""

from collections.abc import Iterable
from itertools import pairwise

BatchRange = tuple[int, int]
"""The first and the last generation of a range."""

_MAX_RANGES = 32


def join_ranges(ranges: Iterable[BatchRange]) -> list[BatchRange]:
    """Return ascending ranges that cover all given ranges."""
    joined: list[BatchRange] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return _close_gaps(joined)


def _close_gaps(ranges: list[BatchRange]) -> list[BatchRange]:
    """Join ranges, and keep only the largest gaps between them."""
    gaps = [(after[0] - before[1], before[1], after[0]) for before, after in pairwise(ranges)]
    kept = sorted((last, first) for _, last, first in sorted(gaps, reverse=True)[: _MAX_RANGES - 1])
    firsts = [ranges[0][0], *(first for _, first in kept)] if ranges else []
    lasts = [*(last for last, _ in kept), ranges[-1][1]] if ranges else []
    return list(zip(firsts, lasts, strict=True))


def overlaps(ranges: Iterable[BatchRange], first: int, last: int) -> bool:
    """Return whether any generation from `first` to `last` is in one of the ranges."""
    return any(start <= last and first <= end for start, end in ranges)
