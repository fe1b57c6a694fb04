"""The part of a log file that was written in a span of time."""

import pytest

from rayhistory.logs.source import FlushPoint
from rayhistory.logs.written_range import SLACK_MS, range_written_between

MINUTES = SLACK_MS
POINTS = [FlushPoint(10, 10 * MINUTES), FlushPoint(30, 20 * MINUTES), FlushPoint(60, 30 * MINUTES)]


@pytest.mark.parametrize(
    ("start", "end", "written"),
    [
        (0, 5, (0, 60)),  # ended before the first flush: the times may be those of a copy
        (0, 10, (0, 30)),
        (5, 15, (0, 30)),
        (12, 15, (10, 30)),
        (12, 25, (10, 60)),
        (12, None, (10, 60)),
        (40, 50, (60, 60)),
        (10, 20, (0, 60)),  # within the slack, a flush may belong to either side
    ],
)
def test_range_holds_every_flush_of_the_span(start: int, end: int | None, written: tuple[int, int]) -> None:
    end_ms = None if end is None else end * MINUTES
    assert range_written_between(POINTS, start * MINUTES, end_ms) == written


def test_file_of_a_copied_session_is_returned_whole() -> None:
    copied = [FlushPoint(10, 1000 * MINUTES), FlushPoint(60, 1001 * MINUTES)]
    assert range_written_between(copied, 12 * MINUTES, 15 * MINUTES) == (0, 60)


def test_empty_file_has_an_empty_range() -> None:
    assert range_written_between([], 0, 1) == (0, 0)
