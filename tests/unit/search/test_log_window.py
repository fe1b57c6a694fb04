"""Windows of log files: by line, offset, time and from the end, without reading the whole file."""

import asyncio

from rayhistory.logs.source import StoredLogFile
from rayhistory.search.log_window import (
    LogWindow,
    Position,
    find_end,
    find_line,
    find_time,
    number_position,
    read_window,
)
from rayhistory.search.scan_plan import UNIT_BYTES
from support.memory_logs import NODE_A, MemoryLogs

START_MS = 1_794_736_800_000
COUNT = 200_000
LINES = b"".join(
    b"2026-11-15 %02d:%02d:%02d line %06d\n" % (10 + n // 36000, n // 600 % 60, n // 10 % 60, n + 1)
    for n in range(COUNT)
)
FILE = StoredLogFile("a.out", len(LINES))
WIDTH = len(LINES) // COUNT


def logs() -> MemoryLogs:
    return MemoryLogs({(NODE_A, "a.out"): LINES})


def window_at(position: Position, above: int = 0) -> LogWindow:
    return asyncio.run(read_window(logs(), NODE_A, FILE, position, above))


def test_a_line_is_found_by_its_number() -> None:
    position = asyncio.run(find_line(logs(), NODE_A, FILE, 150_000))
    assert position == Position(149_999 * WIDTH, 150_000)
    window = window_at(position, 3)
    assert [line.number for line in window.lines[:5]] == [149_997, 149_998, 149_999, 150_000, 150_001]
    assert window.lines[3].text.endswith("line 150000")


def test_a_number_behind_the_end_is_the_last_line() -> None:
    assert asyncio.run(find_line(logs(), NODE_A, FILE, COUNT + 5)).offset == len(LINES) - WIDTH


def test_units_with_a_known_number_of_lines_are_not_read() -> None:
    source, breaks = logs(), {0: LINES.count(b"\n", 0, UNIT_BYTES)}
    found = asyncio.run(find_line(source, NODE_A, FILE, 150_000, breaks))
    assert found == Position(149_999 * WIDTH, 150_000)
    assert asyncio.run(number_position(source, NODE_A, FILE, Position(found.offset, None), breaks)) == found
    assert min(start for _, _, start, _ in source.reads) == UNIT_BYTES


def test_a_unit_with_a_known_number_of_lines_is_read_for_a_line_in_it() -> None:
    breaks = {0: LINES.count(b"\n", 0, UNIT_BYTES)}
    for number in (1, breaks[0], breaks[0] + 1, breaks[0] + 2):
        assert asyncio.run(find_line(logs(), NODE_A, FILE, number, breaks)).offset == (number - 1) * WIDTH


def test_a_time_is_found_with_few_reads() -> None:
    source = logs()
    position = asyncio.run(find_time(source, NODE_A, FILE, START_MS + 3_600_000))
    assert window_at(position).lines[0].text.startswith("2026-11-15 11:00:00 line 036001")
    assert len(source.reads) < 20
    assert sum(end - start for _, _, start, end in source.reads) < len(LINES) // 4


def test_the_end_has_the_last_lines() -> None:
    window = window_at(asyncio.run(find_end(logs(), NODE_A, FILE, 5)))
    assert [line.text[-6:] for line in window.lines] == [f"{number:06}" for number in range(COUNT - 4, COUNT + 1)]
    assert window.end == window.size


def test_windows_follow_each_other() -> None:
    first = window_at(Position(0, 1))
    assert len(first.lines) == 1000
    second = window_at(Position(first.end, 1001))
    assert (second.lines[0].number, second.lines[0].offset) == (1001, first.end)


def test_an_offset_inside_a_line_shows_the_whole_line() -> None:
    window = window_at(Position(10 * WIDTH + 5, None))
    assert (window.lines[0].offset, window.lines[0].number) == (10 * WIDTH, None)


def test_a_long_line_is_cut_and_the_next_window_goes_on() -> None:
    source = MemoryLogs({(NODE_A, "a.out"): b"x" * 1_000_000 + b"\nnext\n"})
    file = StoredLogFile("a.out", 1_000_006)
    window = asyncio.run(read_window(source, NODE_A, file, Position(0, 1), 0))
    assert (len(window.lines), len(window.lines[0].text), window.lines[0].cut) == (1, 16384, True)
    assert window.end > 0
