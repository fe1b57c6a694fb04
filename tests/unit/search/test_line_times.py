"""Times of log lines, in the formats that Ray, Python and structured logs write."""

import pytest

from rayhistory.search.line_times import inherited_ms, line_ms

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
    assert inherited_ms(buffer, buffer.index(b"  boom")) == MS
    assert inherited_ms(buffer, 0) is None
