"""A search finds the lines that ripgrep finds in the unpacked files, however they are cut into units."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.errors import StoreUnavailable, UsageError
from rayhistory.logs.source import FlushPoint
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import OLDEST, SearchQuery
from rayhistory.search.unit_search import FoundLine
from support.memory_logs import NODE_A, NODE_B, MemoryLogs
from support.ripgrep import ripgrep

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b"error", b"Error: task 12 failed", b"a\r", b"x" * 90, b"\xff\xfe bin\x00ary", b"aab ab", b"fooerror",
             b"\xc3\xbcber \xc3\x9cber", b"err or", b"\xe2\x84\xaa K k", b"a-b_c", b"\xffab", b"ab\xff", b"ab ab,ab"]
        ),
        st.binary(max_size=12),
        st.text("abE -\t_1é", max_size=10).map(str.encode),
    ),
    max_size=12,
)  # fmt: skip
FILES = st.dictionaries(st.sampled_from(["a.out", "b.err", "sub/c.log"]), LINES, min_size=1)
TEXTS = st.one_of(
    st.sampled_from(["error", "ab", "K", "Über", "a-b", ".", "x", "\x00", "12 f", "\\", "b a"]),
    st.text("abE -_1é.", min_size=1, max_size=4),
)
REGEXES = st.sampled_from(
    ["a+b", "^a", "b$", "^$", "a|b|error", "[^x]", "a.b", "(e)(r+)", "x{3,5}", "[[:digit:]]+", "a?", "^", "$", "e.*r",
     r"\.", "(?i)ERROR", "[a-c]{2}", ".", "", "(a|b)*c?", r"\x41", "é+", "a[^b]", "(?i:k)", "r\\b"]
).filter(bool)  # fmt: skip


def scan(logs: MemoryLogs, query: SearchQuery, unit_bytes: int = 4 << 20) -> tuple[list[FoundLine], Scan]:
    async def run() -> tuple[list[FoundLine], Scan]:
        scanner = Scanner(2, unit_bytes)
        search = Scan(scanner, logs, query)
        lines = [line async for batch in search.lines() for line in batch]
        scanner.close()
        return lines, search

    return asyncio.run(run())


def all_pages(logs: MemoryLogs, query: SearchQuery, unit_bytes: int) -> list[FoundLine]:
    found: list[FoundLine] = []
    while True:
        lines, search = scan(logs, query, unit_bytes)
        found += lines
        assert len(lines) <= query.limit
        if search.next is None:
            return found
        query = msgspec.structs.replace(query, cursor=search.next)


def unpacked(files: dict[str, bytes]) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="unpacked-"))
    for name, data in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def assert_equal_to_ripgrep(files: dict[str, bytes], query: SearchQuery, *flags: str, unit_bytes: int) -> None:
    directory = unpacked(files)
    try:
        expected = ripgrep(directory, query.q, *flags)
    finally:
        shutil.rmtree(directory)
    logs = MemoryLogs({(NODE_A, name): data for name, data in files.items()})
    found = all_pages(logs, query, unit_bytes)
    assert sorted((line.path, line.line, line.offset) for line in found) == [each[:3] for each in expected]
    by_place = {(line.path, line.line): line for line in found}
    for path, number, offset, text, spans in expected:
        line = by_place[path, number]
        assert files[path][offset : line.end] == text
        assert line.text == text.decode(errors="replace")
        if text.isascii():
            assert line.matches == [(start, end) for start, end in spans if start < end]


class Case(msgspec.Struct):
    """Files cut into units, and a pattern."""

    files: dict[str, list[bytes]]
    pattern: str
    case: bool
    word: bool
    final_break: bool
    unit_bytes: int
    limit: int

    @property
    def contents(self) -> dict[str, bytes]:
        return {name: b"\n".join(lines) + b"\n" * self.final_break for name, lines in self.files.items()}

    @property
    def flags(self) -> list[str]:
        return [*(["--word-regexp"] if self.word else []), *([] if self.case else ["--ignore-case"])]


def cases(patterns: st.SearchStrategy[str], word: st.SearchStrategy[bool]) -> st.SearchStrategy[Case]:
    return st.builds(Case, FILES, patterns, st.booleans(), word, st.booleans(), st.integers(1, 64), st.integers(1, 5))


@settings(max_examples=60, deadline=None)
@given(cases(TEXTS, st.booleans()))
def test_texts_are_found_like_ripgrep(case: Case) -> None:
    query = SearchQuery(case.pattern, case=case.case, word=case.word, limit=case.limit)
    assert_equal_to_ripgrep(case.contents, query, "--fixed-strings", *case.flags, unit_bytes=case.unit_bytes)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases(REGEXES, st.just(value=False)))
def test_regular_expressions_are_found_like_ripgrep(case: Case) -> None:
    query = SearchQuery(case.pattern, regex=True, case=case.case, limit=case.limit)
    assert_equal_to_ripgrep(case.contents, query, *case.flags, unit_bytes=case.unit_bytes)


def test_hits_of_all_nodes_are_in_the_order_of_their_times() -> None:
    first = b"2026-11-15 10:00:01,000 one word\n2026-11-15 10:00:05,000 five word\n"
    second = b"[2026-11-15 10:00:03,000 I 1 1] three word\n2026-11-15T10:00:07Z seven word\n"
    logs = MemoryLogs({(NODE_A, "a.log"): first, (NODE_B, "b.log"): second})
    newest, search = scan(logs, SearchQuery("word"))
    assert [line.text.split()[-2] for line in newest] == ["seven", "five", "three", "one"]
    oldest, _ = scan(logs, SearchQuery("word", order=OLDEST))
    assert [line.at_ms for line in oldest] == [line.at_ms for line in reversed(newest)]
    assert (search.total, search.complete, search.scanned_bytes) == (4, True, len(first) + len(second))


def test_lines_without_a_time_have_that_of_the_line_before_or_of_their_upload() -> None:
    logs = MemoryLogs({(NODE_A, "a.log"): b"word\n2026-11-15 10:00:01,250 message\n  word in a traceback\n"}, 77_000)
    (traceback, early), _ = scan(logs, SearchQuery("word"))
    assert (traceback.at_ms, traceback.approximate) == (1_794_736_801_250, True)
    assert (early.at_ms, early.approximate) == (77_000, True)


def test_times_limit_the_hits() -> None:
    lines = b"".join(b"2026-11-15 10:00:%02d,000 word\n" % second for second in range(10))
    logs = MemoryLogs({(NODE_A, "a.log"): lines})
    start = 1_794_736_800_000
    found, search = scan(logs, SearchQuery("word", from_ms=start + 2000, to_ms=start + 5000, order=OLDEST))
    assert [line.line for line in found] == [3, 4, 5]
    assert search.total == 3


@pytest.mark.parametrize("unit_bytes", [1 << 20, 4 << 20])
def test_a_line_of_ten_megabytes_is_one_line(unit_bytes: int) -> None:
    line = b"x" * 5_000_000 + b"needle" + b"y" * 5_000_000
    logs = MemoryLogs({(NODE_A, "a.out"): b"before\n" + line + b"\nafter needle\n"})
    found, _ = scan(logs, SearchQuery("needle", order=OLDEST), unit_bytes)
    assert [(each.line, each.offset) for each in found] == [(2, 7), (3, 10_000_014)]
    (start, end), text = found[0].matches[0], found[0].text
    assert (found[0].cut, len(text), text[start:end]) == (True, 4096, "needle")


def test_context_has_the_lines_around_a_hit() -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1, 21))
    logs = MemoryLogs({(NODE_A, "a.out"): lines})
    (hit,), _ = scan(logs, SearchQuery("line 10", context=2), 16)
    assert (hit.before, hit.after) == (["line 8", "line 9"], ["line 11", "line 12"])
    (first, *_), _ = scan(logs, SearchQuery("line 1", context=3, order=OLDEST))
    assert (first.before, first.after) == ([], ["line 2", "line 3", "line 4"])


def test_pages_do_not_change_while_files_grow() -> None:
    key = (NODE_A, "a.out")
    logs = MemoryLogs({key: b"hit 1\nhit 2\nhit 3\n"})
    logs.points[key] = [FlushPoint(18, 1000)]
    query = SearchQuery("hit", limit=2)
    first, search = scan(logs, query)
    logs.contents[key] += b"hit 4\n"
    logs.points[key].append(FlushPoint(24, 2000))
    second, after = scan(logs, msgspec.structs.replace(query, cursor=search.next))
    assert [line.text for line in first + second] == ["hit 3", "hit 2", "hit 1"]
    assert after.complete
    assert [line.text for line in scan(logs, query)[0]] == ["hit 4", "hit 3"]


def test_a_cursor_of_other_files_is_rejected() -> None:
    query = SearchQuery("hit", limit=1)
    _, search = scan(MemoryLogs({(NODE_A, "a.out"): b"hit\nhit\n"}), query)
    with pytest.raises(UsageError, match="have changed"):
        scan(MemoryLogs({(NODE_A, "b.out"): b"hit\nhit\n"}), msgspec.structs.replace(query, cursor=search.next))


def test_a_page_reads_only_what_it_needs() -> None:
    logs = MemoryLogs({(NODE_A, f"{number}.out"): b"hit\n" * 1000 for number in range(50)})
    _, search = scan(logs, SearchQuery("hit", limit=10, order=OLDEST), 4000)
    assert (search.scanned_bytes, search.total, search.complete) == (4000, None, False)


def test_every_page_of_a_common_text_reads_little() -> None:
    """A page that ends within a batch makes the next one search this batch again, so such a batch is small."""
    lines = [b"2026-11-15 10:00:%02d a common word\n" % (number // 200) for number in range(10_000)]
    logs = MemoryLogs({(NODE_A, "a.log"): b"".join(lines)})
    cursor, found, read = None, 0, []
    while cursor or not found:
        page, search = scan(logs, SearchQuery("common", limit=100, order=OLDEST, cursor=cursor), 10_000)
        cursor, found = search.next, found + len(page)
        read.append(search.scanned_bytes)
    assert found == len(lines)
    assert max(read) <= 20_000


def test_a_failing_store_is_an_error_and_not_a_short_result() -> None:
    class FailingLogs(MemoryLogs):
        async def read(self, node: str, path: str, start: int, end: int) -> bytes:
            if path == "b.out":
                raise StoreUnavailable("the store is down")
            return await super().read(node, path, start, end)

    with pytest.raises(StoreUnavailable):
        scan(FailingLogs({(NODE_A, "a.out"): b"hit\n", (NODE_A, "b.out"): b"hit\n"}), SearchQuery("hit"))


def test_node_file_and_stream_select_files() -> None:
    names = ["worker-1.out", "worker-1.err", "raylet.out", "old/worker-2.out", "worker-3.1.out"]
    logs = MemoryLogs({(node, name): b"hit\n" for node in (NODE_A, NODE_B) for name in names})

    def files(**filters: Any) -> set[str]:
        return {line.path for line in scan(logs, SearchQuery("hit", node="a", **filters))[0]}

    assert files(file="worker*") == {"worker-1.out", "worker-1.err", "old/worker-2.out", "worker-3.1.out"}
    assert files(file="old/*") == {"old/worker-2.out"}
    assert files(stream="err") == {"worker-1.err"}
    assert len(scan(logs, SearchQuery("hit"))[0]) == 10


@pytest.mark.slow
def test_every_visitor_gets_a_turn_while_another_searches_for_long() -> None:
    """One visitor starts twenty searches of everything; the search of another does not wait for their end."""
    big = MemoryLogs({(NODE_A, f"{number}.out"): b"x" * 4000 for number in range(400)})
    small = MemoryLogs({(NODE_B, "a.out"): b"hit\n"})

    async def run() -> list[str]:
        scanner = Scanner(1, 4000)
        finished: list[str] = []

        async def search(name: str, logs: MemoryLogs) -> None:
            async for _ in Scan(scanner, logs, SearchQuery("hit"), visitor=name).lines():
                pass
            finished.append(name)

        await asyncio.gather(*(search("greedy", big) for _ in range(20)), search("other", small))
        scanner.close()
        return finished

    assert asyncio.run(run())[0] == "other"


def test_twenty_visitors_hold_few_units_in_memory() -> None:
    logs = MemoryLogs({(NODE_A, f"{number}.out"): b"x" * 4000 for number in range(10)})

    class CountingScanner(Scanner):
        held = most = 0

        @asynccontextmanager
        async def turn(self, visitor: str) -> AsyncIterator[bytearray]:
            async with super().turn(visitor) as buffer:
                self.held += 1
                self.most = max(self.most, self.held)
                yield buffer
                self.held -= 1

    async def run() -> CountingScanner:
        scanner = CountingScanner(2, 4000)

        async def search(visitor: str) -> None:
            scan = Scan(scanner, logs, SearchQuery("hit"), visitor=visitor)
            assert [lines async for lines in scan.lines() if lines] == []
            assert scan.complete

        await asyncio.gather(*(search(f"visitor {number}") for number in range(20)))
        scanner.close()
        return scanner

    scanner = asyncio.run(run())
    assert (scanner.held, scanner.most) == (0, 4)


def test_an_abandoned_search_reads_no_further() -> None:
    logs = MemoryLogs({(NODE_A, f"{number}.out"): b"x" * 4000 for number in range(1000)})

    async def run() -> int:
        scanner = Scanner(1, 4000)
        lines = Scan(scanner, logs, SearchQuery("hit")).lines()
        await anext(lines)
        await lines.aclose()  # type: ignore[attr-defined]
        reads = len(logs.reads)
        await asyncio.sleep(0.05)
        scanner.close()
        assert len(logs.reads) == reads
        return reads

    assert asyncio.run(run()) < 100
