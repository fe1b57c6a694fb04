"""The extensions that a part of an index depends on, as a short list of ranges.

A session that runs for months is extended a million times. If there are too many ranges, neighbouring ones are joined.
Then, if the part is lost, a few more objects than necessary are read.
"""

from collections.abc import Iterable
from itertools import pairwise

BatchRange = tuple[int, int]
"""The first and the last extension of a range."""

_MAX_RANGES = 32


def join_ranges(ranges: Iterable[BatchRange]) -> list[BatchRange]:
    """Return ascending ranges that cover all given ones."""
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
    """Return whether one of the ranges has an extension from `first` to `last`."""
    return any(start <= last and first <= end for start, end in ranges)
