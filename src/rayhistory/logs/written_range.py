"""Find the bytes of a log file that were written in a time range, from the times at which they were stored."""

from collections.abc import Sequence

from rayhistory.logs.source import FlushPoint

SLACK_MS = 60_000
"""Tolerance for clock differences between node and store, and for late uploads."""


def range_written_between(points: Sequence[FlushPoint], start_ms: int, end_ms: int | None) -> tuple[int, int]:
    """Return the smallest range [start, end) of whole flushes that contains all bytes written between two times.

    If a file was first stored after the time range, as in a copied session, its times are useless. Return all of it.
    """
    size = points[-1].end if points else 0
    first_ms, last_ms = start_ms - SLACK_MS, None if end_ms is None else end_ms + SLACK_MS
    start = max((point.end for point in points if point.ms < first_ms), default=0)
    if last_ms is None or not points or points[0].ms > last_ms:
        return start, size
    return start, min((point.end for point in points if point.ms > last_ms), default=size)
