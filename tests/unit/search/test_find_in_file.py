"""The next and the previous match in a file are those of a search line by line, however the file is cut into units."""

import asyncio
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.search.find_in_file import FileSearch, FileSearchResult, find_in_file
from rayhistory.search.pattern import SearchPattern
from rayhistory.search.scan_plan import LogFile, LogUnit
from rayhistory.search.scanner import Scanner, UnitPlace, unit_place
from support.memory_logs import NODE_A, MemoryLogs

LINES = st.lists(
    st.sampled_from([b"", b"error", b"an ERROR", b"other", b"x" * 40, b"\xff error \xc3\xbc"]), max_size=15
)


class FirstUnitsExcluded:
    """An index that knows two units without a match."""

    def __init__(self) -> None:
        self.report_damage = print

    async def excluded(self, units: list[LogUnit], pattern: SearchPattern) -> set[UnitPlace]:
        return set(map(unit_place, units[:2]))


def find(data: bytes, position: int, *, unit_bytes: int = 4 << 20, backwards: bool = False, seconds: float = 60.0,
         index: FirstUnitsExcluded | None = None) -> tuple[FileSearchResult, MemoryLogs]:  # fmt: skip
    logs = MemoryLogs({(NODE_A, "a.log"): data})

    async def run() -> FileSearchResult:
        history = (await logs.histories(NODE_A))["a.log"]
        scanner = Scanner(1, unit_bytes)
        search = FileSearch(SearchPattern("error"), position, backwards)
        file = LogFile(NODE_A, "a.log", history.points, history.identity)
        found = await find_in_file(scanner, logs, file, search, visitor="me", time_budget_s=seconds, unit_index=index)  # type: ignore[arg-type]
        scanner.close()
        return found

    return asyncio.run(run()), logs


@settings(max_examples=80, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 50), st.integers(0, 400))
def test_matches_are_those_of_a_search_line_by_line(lines: list[bytes], ended: bool, unit: int, position: int) -> None:
    data = b"\n".join(lines) + b"\n" * ended
    offsets, offset = [], 0
    for line in lines:
        offsets += [offset] if b"error" in line.lower() else []
        offset += len(line) + 1
    after = partial(find, data, position, unit_bytes=unit)
    assert after()[0].offset == min((each for each in offsets if each >= position), default=None)
    assert after(backwards=True)[0].offset == max((each for each in offsets if each < position), default=None)


def test_units_that_the_index_excludes_are_not_read() -> None:
    result, logs = find(b"other\n" * 20 + b"error\n", 0, unit_bytes=12, index=FirstUnitsExcluded())
    assert result.offset == 120
    assert min(start for _, _, start, _ in logs.reads) >= 23


def test_a_search_whose_time_is_over_says_where_to_continue() -> None:
    data = b"other\n" * 20
    assert find(data, 30, unit_bytes=12, seconds=-1)[0] == FileSearchResult(stopped_at=30)
    assert find(data, 30, unit_bytes=12, seconds=-1, backwards=True)[0] == FileSearchResult(stopped_at=30)
