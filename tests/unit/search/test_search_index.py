"""The search index excludes units without ever excluding a line that matches."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.errors import UsageError
from rayhistory.search.index_builder import build_shards, new_units
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_index import SearchIndex, ShardFile
from rayhistory.search.search_query import SearchQuery
from rayhistory.search.shard_format import PREAMBLE_BYTES, header_bytes
from support.memory_logs import NODE_A, MemoryLogs

ID = "c2668a65bda616c1ffffffffffffffffffffffff01000000"


def build(logs: MemoryLogs, directory: Path, unit_bytes: int, name: str = "1") -> dict[str, Path]:
    async def run() -> dict[str, Path]:
        units = await new_units(logs, [], unit_bytes)
        return await build_shards(logs, units, directory, prefix=name, unit_bytes=unit_bytes)

    return asyncio.run(run())


def open_index(
    files: dict[str, Path],
    extend: Callable[[], Awaitable[None]] | None = None,
    on_damage: Callable[[str], object] = lambda reason: None,
) -> SearchIndex:
    async def read(name: str, start: int, end: int) -> bytes:
        return files[name].read_bytes()[start:end]

    shards = [ShardFile(name, path.stat().st_size, name) for name, path in files.items()]
    return SearchIndex(shards, read, on_damage=on_damage, extend=extend)


def search(
    logs: MemoryLogs, query: SearchQuery, unit_bytes: int, index: SearchIndex | None = None
) -> tuple[list[tuple[str, int | None, str]], Scan]:
    async def run() -> tuple[list[tuple[str, int | None, str]], Scan]:
        scanner = Scanner(1, unit_bytes)
        scan = Scan(scanner, logs, query, unit_index=index)
        lines = [(line.path, line.line, line.text) async for some in scan.lines() for line in some]
        scanner.close()
        return lines, scan

    return asyncio.run(run())


LINES = st.lists(
    st.one_of(
        st.sampled_from([
            b"Error: task failed", b"an error", b"errors_found", b"OutOfMemoryError", ID.encode(), b"x" * 100,
            b"worker " + ID[:32].encode() + b" died", b"\xc3\x9cber \xe2\x84\xaaelvin", b"\xe2\x86\x92error", b"a1b2c3",
            b"\xff\xfe\x00", b"deadbeef12345678", b"a-b", b"12:34:56,789", b"",
        ]),
        st.text("abeor1_ -é\u212a", max_size=20).map(str.encode),
        st.binary(max_size=10).map(lambda each: each.replace(b"\n", b"")),
    ),
    max_size=20,
)  # fmt: skip
PATTERNS = st.one_of(
    st.sampled_from(
        ["error", "Memory", "task failed", ID, ID[:32], ID[3:25], ID[:8], "über", "kelvin", "→error", "beef", "an e",
         "x" * 70, "56,7", "r", "_found", "xx", "a-b", "nowhere", "rror", "deadbeef12345678",
         "OOM", "bled", "k 1", "kk"]
    ),
    st.text("abeor1_ -é", min_size=1, max_size=5),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(LINES, PATTERNS, st.booleans(), st.booleans(), st.sampled_from([20, 64, 300]))
def test_a_search_with_an_index_finds_the_same(
    lines: list[bytes], text: str, case: bool, word: bool, unit_bytes: int
) -> None:
    logs = MemoryLogs({(NODE_A, "a.log"): b"\n".join(lines), (NODE_A, "b.log"): b"\n".join(reversed(lines))})
    query = SearchQuery(text, case=case, word=word, limit=1000)
    with tempfile.TemporaryDirectory() as directory:
        index = open_index(build(logs, Path(directory), unit_bytes))
        assert search(logs, query, unit_bytes, index)[0] == search(logs, query, unit_bytes)[0]
        regex = msgspec.structs.replace(query, q=f"{text}.?x?", regex=True)
        try:
            regex.pattern()
        except UsageError:
            return
        assert search(logs, regex, unit_bytes, index)[0] == search(logs, regex, unit_bytes)[0]


@pytest.fixture
def logs() -> MemoryLogs:
    lines = [b"2026-11-15 10:00:00 INFO request %d took %d ms\n" % (n, n % 97) for n in range(20_000)]
    lines[7_000] = b"2026-11-15 10:00:00 INFO task " + ID.encode() + b" needle42 OutOfMemoryError\n"
    return MemoryLogs({(NODE_A, "a.log"): b"".join(lines)})


@pytest.mark.parametrize("text", ["needle42", "edle4", "OfMemory", ID, ID[8:40], f"task {ID[:20]}"])
def test_only_units_that_can_match_are_read(logs: MemoryLogs, tmp_path: Path, text: str) -> None:
    index = open_index(build(logs, tmp_path, 10_000))
    found, scan = search(logs, SearchQuery(text), 10_000, index)
    assert [line for _, line, _ in found] == [7001]
    assert scan.scanned_bytes == 10_000
    assert (scan.complete, scan.total) == (True, 1)


def test_small_files_are_excluded_together(tmp_path: Path) -> None:
    names = [f"{number:02}.out" for number in range(40)]
    files = {(NODE_A, name): b"a line of %s\n" % name.encode() * 20 for name in names}
    files[NODE_A, "20.out"] += b"the needle42\n"
    logs = MemoryLogs(files)
    index = open_index(build(logs, tmp_path, 10_000))
    units = asyncio.run(index.units())
    assert (len(units), len({unit.group for unit in units})) == (40, 6)
    found, scan = search(logs, SearchQuery("needle42"), 10_000, index)
    assert [path for path, _, _ in found] == ["20.out"]
    assert scan.scanned_bytes <= 2500


def test_a_word_that_is_nowhere_reads_nothing(logs: MemoryLogs, tmp_path: Path) -> None:
    index = open_index(build(logs, tmp_path, 10_000))
    _, scan = search(logs, SearchQuery("nowhere"), 10_000, index)
    assert (scan.scanned_bytes, scan.total) == (0, 0)


def test_an_index_with_many_shards_is_read_with_a_limited_number_of_requests_at_a_time(
    logs: MemoryLogs, tmp_path: Path
) -> None:
    (path,) = build(logs, tmp_path, 10_000).values()
    data, running, most = path.read_bytes(), 0, 0

    async def read(name: str, start: int, end: int) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return data[start:end]

    index = SearchIndex([ShardFile(str(number), len(data), str(number)) for number in range(50)], read)
    found, _ = search(logs, SearchQuery("needle42 OutOfMemory"), 10_000, index)
    assert len(found) == 1
    assert most == 64


def test_an_index_of_a_shorter_file_does_not_hide_new_lines(logs: MemoryLogs, tmp_path: Path) -> None:
    files = build(logs, tmp_path, 10_000)
    logs.contents[NODE_A, "a.log"] += b"a new zebra\n"
    found, _ = search(logs, SearchQuery("zebra"), 10_000, open_index(files))
    assert [text for _, _, text in found] == ["a new zebra"]


@pytest.mark.parametrize(("new_lines", "extensions"), [(10, 0), (10_000, 1)])
def test_a_search_has_many_new_lines_indexed(logs: MemoryLogs, tmp_path: Path, new_lines: int, extensions: int) -> None:
    started: list[str] = []

    async def extend() -> None:
        started.append("extension")

    files = build(logs, tmp_path, 10_000)
    logs.contents[NODE_A, "a.log"] += b"a new zebra\n" * new_lines
    found, _ = search(logs, SearchQuery("zebra", limit=1), 10_000, open_index(files, extend))
    assert [text for _, _, text in found] == ["a new zebra"]
    assert len(started) == extensions


@pytest.mark.slow
def test_an_extension_indexes_what_is_new_alone(logs: MemoryLogs, tmp_path: Path) -> None:
    files = build(logs, tmp_path, 10_000)
    before = asyncio.run(open_index(files).units())
    logs.contents[NODE_A, "a.log"] += b"a new zebra\n" * 2000
    units = asyncio.run(new_units(logs, before, 10_000))
    assert sum(unit.end - unit.start for unit in units) < 40_000
    files |= asyncio.run(build_shards(logs, units, tmp_path, prefix="2", unit_bytes=10_000))
    found, scan = search(logs, SearchQuery("zebra", limit=1000, order="oldest"), 10_000, open_index(files))
    assert {text for _, _, text in found} == {"a new zebra"}
    assert all((line or 0) > 20_000 for _, line, _ in found)
    assert scan.scanned_bytes < 50_000


def test_a_renamed_file_is_not_taken_for_the_indexed_one(logs: MemoryLogs, tmp_path: Path) -> None:
    files = build(logs, tmp_path, 10_000)

    class Renamed(MemoryLogs):
        async def histories(self, node: str):  # type: ignore[no-untyped-def]
            found = await super().histories(node)
            return {path: msgspec.structs.replace(each, identity="other") for path, each in found.items()}

    other = Renamed({(NODE_A, "a.log"): logs.contents[NODE_A, "a.log"].replace(b"took", b"lion")})
    assert len(search(other, SearchQuery("lion"), 10_000, open_index(files))[0]) == 100


@pytest.mark.parametrize("damage", ["header", "truncated", "without blocks", "blocks"])
def test_a_damaged_index_excludes_nothing(logs: MemoryLogs, tmp_path: Path, damage: str) -> None:
    files = build(logs, tmp_path, 10_000)
    (path,) = files.values()
    data = bytearray(path.read_bytes())
    header_end = PREAMBLE_BYTES + header_bytes(bytes(data))
    if damage == "header":
        data[:4] = b"XXXX"
    elif damage == "blocks":
        data[header_end:] = bytes(len(data) - header_end)
    ends = {"truncated": 100, "without blocks": header_end}
    path.write_bytes(data[: ends.get(damage, len(data))])
    reported: list[str] = []
    index = open_index(files, on_damage=reported.append)
    assert [line for _, line, _ in search(logs, SearchQuery("needle42"), 10_000, index)[0]] == [7001]
    assert len(reported) == 1
