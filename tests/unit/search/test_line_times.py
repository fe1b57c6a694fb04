"""Times of log lines, in the formats that Ray, Python and structured logs write."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayhistory.search.line_times import InheritedTimes, line_ms

MS = 1_794_770_288_055
"""2026-11-15 19:18:08.055 UTC."""


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-15 19:18:08,055\tINFO worker.py:1 -- Connecting",
        b"[2026-11-15 19:18:08,055 I 15551 15551] (raylet) main.cc:1: x",
        b"2026-11-15T19:18:08.055Z hello",
        b"2026-11-15T20:18:08.055+01:00 hello",
        b"2026-11-15T14:48:08.055-0430 hello",
        b"(pid=12) 2026/11/15 19:18:08.055999 go",
        b'{"asctime":"2026-11-15 19:18:08,055","levelname":"INFO"}',
        b'{"level": "info", "ts": 1794770288.055, "msg": "x"}',
        b'{"timestamp":1794770288055}',
    ],
)
def test_times_of_common_formats_are_read(line: bytes) -> None:
    assert line_ms(line) == MS


@pytest.mark.parametrize(
    "line", [b"", b"no time", b"2026-02-31 10:00:00 x", b"x" * 500 + b"2026-11-15 19:18:08", b"12026-11-15 19:18:08"]
)
def test_other_lines_have_no_time(line: bytes) -> None:
    assert line_ms(line) is None


def test_a_line_inherits_the_time_of_the_nearest_line_before_it() -> None:
    buffer = b"2026-11-15 19:18:07 old\n2026-11-15 19:18:08,055 message\nTraceback:\n  boom\n"
    times = InheritedTimes(buffer)
    assert [times.before(0), times.before(buffer.index(b"  boom"))] == [None, MS]


def nearest_before(buffer: bytes, position: int) -> int | None:
    """Look at all lines that start in the 16 KiB before a position, from the last to the first."""
    starts = [0, *(at + 1 for at, byte in enumerate(buffer) if byte == 10)]
    near = [start for start in starts if position - (16 << 10) <= start < position]
    found = (line_ms(buffer[start : buffer.find(b"\n", start) + 1]) for start in reversed(near))
    return next((ms for ms in found if ms is not None), None)


LINES = (b"2026-11-15 19:18:08 a\n", b"2026-11-15 19:18:09 b\n", b"boom\n", b"x" * 9_000 + b"\n")


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_inherited_times_do_not_depend_on_which_lines_are_asked_for(lines: list[bytes], asked: set[int]) -> None:
    buffer = b"".join(lines)
    times = InheritedTimes(buffer)
    for number in sorted(number for number in asked if number < len(lines)):
        position = sum(map(len, lines[:number]))
        assert times.before(position) == nearest_before(buffer, position)


class CountingBytes(bytes):
    searches = 0

    def rfind(self, *arguments: Any) -> int:
        self.searches += 1
        return super().rfind(*arguments)


def test_lines_without_times_are_looked_at_once() -> None:
    """Not for each match: a search for a common text took minutes in a log without times."""
    buffer = CountingBytes(b"no time\n" * 20_000)
    times = InheritedTimes(buffer)
    assert {times.before(position) for position in range(0, len(buffer), 8)} == {None}
    assert buffer.searches <= 2 * 20_000
