"""Packs: what was in the files is what is read back, whatever happened to the files, the collector and the store."""

import asyncio
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.packfiles import read_streams
from rayhistory.collector import packs, tail
from rayhistory.collector.packs import PackBuilder, PackSeries
from rayhistory.events.columns import Rows
from rayhistory.index.read import read_source
from rayhistory.index.sources import Kind, list_sources
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.packread import PackReader, filler
from rayhistory.layout.packs import (
    Catalog,
    Compressor,
    DamagedPack,
    Place,
    Range,
    Root,
    SegmentInfo,
    Stream,
    Tail,
    end_of_pack,
    pack_name,
    read_end,
    to_columns,
    unpack_frame,
)
from rayhistory.server.logfiles import PackLogs, find_file, start_of_last_lines
from rayhistory.storage.local import LocalStore

PREFIX = "logs/node"


class CountingStore(LocalStore):
    """A real store that counts what is asked of it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.puts: list[str] = []
        self.reads: list[tuple[str, int]] = []

    async def put(self, key: str, data: bytes | Path) -> None:
        await super().put(key, data)
        self.puts.append(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.reads.append((key, end - start))
        return await super().get_range(key, start, end)


class Node:
    """A logs directory, a store, and the collector's half between them."""

    def __init__(self, home: Path) -> None:
        self.logs = home / "logs"
        self.logs.mkdir(parents=True)
        self.home = home
        self.store = CountingStore(home / "store")
        self.lines = 0
        self.series = PackSeries(self.logs, Catalog())

    def append(self, name: str, lines: int = 1, width: int = 20) -> None:
        path = self.logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for _ in range(lines):
                self.lines += 1
                file.write(f"line {self.lines} ".encode().ljust(width, b"x") + b"\n")

    def flush(self, *, lost_answer: bool = False) -> int:
        """Ships everything; gives the number of packs."""
        packs = 0
        while sealed := self.series.make(final=True):
            asyncio.run(self.store.put(f"{PREFIX}/{sealed.name}", sealed.data))
            packs += 1
            if lost_answer:
                break
        return packs

    def restart(self) -> None:
        reader = self.reader()
        self.series = PackSeries(self.logs, reader.catalog, reader.newest)

    def reader(self) -> PackReader:
        reader = PackReader(self.store, PREFIX)
        asyncio.run(reader.refresh())
        return reader

    def read_all(self) -> dict[str, bytes]:
        reader = self.reader()

        async def contents() -> dict[str, bytes]:
            return {name: await reader.read(name, 0, 1 << 40) for name in reader.names}

        return asyncio.run(contents())

    def on_disk(self) -> dict[str, bytes]:
        paths = [path for path in self.logs.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.logs)): path.read_bytes() for path in paths}

    def packs(self) -> list[Path]:
        return sorted((self.home / "store" / PREFIX).rglob("*.pack"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def rotate(logs: Path, form: str, most: int = 3) -> None:
    """As Python's handlers (`x.log.1`) and spdlog (`x.1.out`) do: the last one is overwritten."""
    names = [logs / (form.format(f".{number}") if number else form.format("")) for number in range(most + 1)]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        if newer.exists():
            newer.rename(older)


FORMS = {"dashboard.log": "dashboard.log{}", "raylet.out": "raylet{}.out", "worker-a-1-2.err": "worker-a-1-2{}.err"}


# What is read back


def test_only_what_was_appended_is_shipped_in_one_object_for_all_files(node: Node) -> None:
    """Many files, one PUT per flush, and nothing when nothing changed."""
    for number in range(200):
        node.append(f"worker-{number}.out")
    assert node.flush() == 1
    assert node.flush() == 0
    before = sum(path.stat().st_size for path in node.packs())
    node.append("worker-7.out")
    (node.logs / "empty.err").touch()
    assert node.flush() == 1
    assert sum(path.stat().st_size for path in node.packs()) - before < 1500
    assert node.read_all() == node.on_disk()


@pytest.mark.parametrize("name", FORMS)
def test_a_rotated_file_is_not_sent_again_and_is_read_under_its_new_name(node: Node, name: str) -> None:
    """Both of Ray's ways; what rotation removes at last goes on under the next number."""
    node.append(name, 1000)
    node.flush()
    rotate(node.logs, FORMS[name])
    node.append(name, 2)
    raw = [sealed.raw for _ in range(1) if (sealed := node.series.make())]
    assert raw == [(node.logs / name).stat().st_size]
    node.restart()
    for _ in range(4):
        node.flush()
        rotate(node.logs, FORMS[name])
        node.append(name, 3)
    node.flush()
    kept = node.read_all()
    assert {each: kept[each] for each in node.on_disk()} == node.on_disk()
    assert set(kept) - set(node.on_disk()) == {FORMS[name].format(".4"), FORMS[name].format(".5")}
    assert kept[FORMS[name].format(".5")].count(b"\n") == 1000


def test_a_file_that_moves_to_old_is_followed(node: Node) -> None:
    """Ray's log monitor moves the files of dead workers when it runs out of handles."""
    node.append("worker-a-1-2.out", 5)
    node.flush()
    node.append("worker-a-1-2.out", 5)
    (node.logs / "old").mkdir()
    (node.logs / "worker-a-1-2.out").rename(node.logs / "old" / "worker-a-1-2.out")
    node.flush()
    assert node.read_all() == node.on_disk()


def test_a_removed_file_stays_readable_under_its_name(node: Node) -> None:
    node.append("worker-a-1-2.out", 5)
    node.flush()
    content = (node.logs / "worker-a-1-2.out").read_bytes()
    (node.logs / "worker-a-1-2.out").unlink()
    node.append("other.log")
    node.flush()
    assert node.read_all() == {"worker-a-1-2.out": content, **node.on_disk()}


@pytest.mark.parametrize("other", ["worker_10.log", "worker_1.more.log"])
def test_a_removed_file_that_another_begins_with_stays_readable(node: Node, other: str) -> None:
    """Many logs begin alike: what was there all the time is no copy of it."""
    (node.logs / "worker_1.log").write_text("start\n")
    (node.logs / other).write_text("start\nmore\n")
    node.flush()
    (node.logs / "worker_1.log").unlink()
    node.flush()
    assert node.read_all() == {"worker_1.log": b"start\n", **node.on_disk()}


def test_a_cut_file_that_another_begins_with_stays_readable(node: Node) -> None:
    (node.logs / "worker_1.log").write_text("start\n")
    (node.logs / "worker_10.log").write_text("start\nmore\n")
    node.flush()
    os.truncate(node.logs / "worker_1.log", 0)
    node.flush()
    assert node.read_all() == {"worker_1.log.1": b"start\n", **node.on_disk()}


@pytest.mark.parametrize("regrown", [0, 2, 50])
def test_a_file_that_was_cut_begins_anew_and_what_it_held_is_kept(node: Node, regrown: int) -> None:
    """Also when it has grown past its old length before anybody looked."""
    node.append("a.log", 10)
    node.flush()
    before = (node.logs / "a.log").read_bytes()
    os.truncate(node.logs / "a.log", 0)
    node.append("a.log", regrown)
    node.flush()
    assert node.read_all() == {"a.log.1": before, **node.on_disk()}


def test_of_a_name_that_is_made_anew_for_ever_the_last_are_kept_and_the_rest_is_counted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store says of a node's files is read at once, and must not grow without end."""
    monkeypatch.setattr(tail, "_MOST_GONE", 20)
    for _ in range(25):
        node.append("a.log")
        node.flush()
        (node.logs / "a.log").unlink()
        node.flush()
    kept = b"".join(node.read_all().values())
    assert {int(line.split()[1]) for line in kept.splitlines()} == set(range(6, 26))
    assert node.series.tailer.lost == 5 * 21


def test_files_that_are_gone_make_room_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to go are forgotten, and counted, when all together are more than can be followed."""
    monkeypatch.setattr(tail, "MOST_FILES", 5)
    for number in range(8):
        node.append(f"{number}.log")
        node.flush()
        if number < 6:
            (node.logs / f"{number}.log").unlink()
        node.flush()
    assert sorted(node.read_all()) == [f"{number}.log" for number in range(3, 8)]
    assert node.series.tailer.lost == 3 * 21
    assert node.series.tailer.beyond == 0


@pytest.mark.parametrize("seen_between", [False, True])
def test_copy_and_truncate_shows_nothing_twice(node: Node, seen_between: bool) -> None:
    """The copy is what the file was; what was written after the last flush is in it too."""
    node.append("a.log", 10)
    node.flush()
    node.append("a.log", 5)
    shutil.copy(node.logs / "a.log", node.logs / "a.log.1")
    if seen_between:
        node.flush()
    os.truncate(node.logs / "a.log", 0)
    node.append("a.log", 30)
    node.flush()
    assert node.read_all() == node.on_disk()


def test_a_state_dump_shows_its_last_state_only(node: Node) -> None:
    """Ray writes debug_state.txt anew every ten seconds: there is no file `.1` of it for each."""
    for number in range(5):
        (node.logs / "debug_state.txt").write_text(f"state {number}\n" * (10 - number))
        node.flush()
    assert node.read_all() == {"debug_state.txt": b"state 4\n" * 6}
    node.restart()
    node.append("x.log")
    node.flush()
    assert set(node.read_all()) == {"debug_state.txt", "x.log"}


def test_links_inside_lead_to_their_file_and_others_nowhere(node: Node) -> None:
    """A link that leads out of the directory is not followed; sockets and names that are no text are left alone."""
    node.append("real.log", 3)
    (node.home / "secret").write_text("secret")
    (node.logs / "inside.log").symlink_to("real.log")
    os.link(node.logs / "real.log", node.logs / "hard.log")
    (node.logs / "outside.log").symlink_to(node.home / "secret")
    (node.logs / "loop").symlink_to("loop")
    (node.logs / "up").symlink_to(node.home)
    os.mkfifo(node.logs / "pipe")
    Path(os.fsdecode(os.fsencode(node.logs) + b"/\xff.log")).write_text("?")
    node.flush()
    content = (node.logs / "real.log").read_bytes()
    assert node.read_all() == {"real.log": content, "inside.log": content, "hard.log": content}
    assert sum(1 for _ in node.packs()) == 1


@pytest.mark.parametrize(("swapped", "after"), [("a.log", 3), ("folder", 3), ("folder", 1), ("folder", 2), ("", 3)])
def test_what_is_swapped_for_a_link_after_the_listing_is_not_read(
    node: Node, monkeypatch: pytest.MonkeyPatch, swapped: str, after: int
) -> None:
    """Whoever writes logs could have the collector's own files stored as theirs. There are three folders to be read."""
    for name in ("a.log", "folder/a.log", "folder/deep/a.log"):
        node.append(name)
        outside = node.home / "outside" / name
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_text("secret " * 100)
        outside.with_name("secret").write_text("secret")
    scandir, left = os.scandir, after

    @contextmanager
    def read_and_swap(directory: int | str) -> Iterator[Iterator[os.DirEntry[str]]]:
        nonlocal left
        with scandir(directory) as inside:
            yield inside
        left -= 1
        if left == 0:
            (node.logs / swapped).rename(node.home / "was")
            (node.logs / swapped).symlink_to(node.home / "outside" / swapped)

    monkeypatch.setattr(os, "scandir", read_and_swap)
    node.series.scan()
    monkeypatch.undo()
    assert left <= 0
    tailer = node.series.tailer
    read = b"".join(data for file in tailer.due(final=True) for _, _, data in tailer.read(file, 1 << 20))
    assert b"secret" not in read
    node.flush()
    assert not any("secret" in name or b"secret" in content for name, content in node.read_all().items())


def test_binary_and_sparse_files_and_long_lines_come_back_exactly(node: Node) -> None:
    (node.logs / "binary").write_bytes(os.urandom(3_000_000))
    (node.logs / "line").write_bytes(b"x" * 10_000_000 + b"\nend")
    with (node.logs / "sparse").open("wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
    node.flush()
    assert node.read_all() == node.on_disk()
    assert sum(path.stat().st_size for path in node.packs()) < 4_000_000


def test_a_large_backlog_is_sent_in_packs_of_bounded_size(node: Node) -> None:
    """And the small files go with the first of them."""
    (node.logs / "huge.out").write_bytes(os.urandom(1 << 20) * 40)
    node.append("small.log")
    first = node.series.make()
    assert first
    assert first.more
    assert len(first.data) < 10 << 20
    asyncio.run(node.store.put(f"{PREFIX}/{first.name}", first.data))
    assert node.read_all()["small.log"] == node.on_disk()["small.log"]
    node.flush()
    assert node.read_all() == node.on_disk()
    assert len(node.packs()) > 2


def test_a_file_that_grows_faster_than_the_store_takes_it_holds_up_no_other(node: Node) -> None:
    """It falls behind, in packs of bounded size, and is whole in the end."""
    block = os.urandom(1 << 20)
    for number in range(8):
        with (node.logs / "fast.out").open("ab") as file:  # as much as two packs hold, while one is being put
            file.write(block * 16)
        node.append("slow.log")
        sealed = node.series.make()
        assert sealed
        assert sealed.more
        assert len(sealed.data) < 10 << 20
        asyncio.run(node.store.put(f"{PREFIX}/{sealed.name}", sealed.data))
        seen = asyncio.run(node.reader().read("slow.log", 0, 1 << 20))
        assert seen.count(b"\n") >= number, "the other file is at most one pack late"
    node.flush()
    assert node.read_all() == node.on_disk()


# The collector's end


def test_a_collector_that_comes_back_sends_nothing_twice(node: Node) -> None:
    """The store alone tells where to go on, also when the answer to the last PUT was lost."""
    node.append("a.log", 100)
    node.flush(lost_answer=True)
    node.restart()
    assert node.series.make() is None
    node.append("a.log", 1)
    sealed = node.series.make()  # killed before it was sent
    assert sealed
    assert sealed.raw == 21
    node.restart()
    node.flush()
    assert node.read_all() == node.on_disk()


def test_files_on_another_device_are_known_by_their_bytes(node: Node) -> None:
    """After a copy of the directory, or a new mount, inodes say nothing."""
    node.append("a.log", 100)
    node.append("b.log", 10)
    node.flush()
    moved = node.home / "moved"
    shutil.copytree(node.logs, moved)
    shutil.rmtree(node.logs)
    moved.rename(node.logs)
    (node.logs / "b.log").write_text("something else, and longer than it was" * 10)
    node.append("a.log", 1)
    node.restart()
    sealed = node.series.make()
    assert sealed
    assert sealed.raw == 21 + len(node.on_disk()["b.log"])
    node.restart()
    node.flush()
    assert {name: content for name, content in node.read_all().items() if name != "b.log.1"} == node.on_disk()


# Random schedules

NAMES = st.sampled_from(sorted(FORMS))
STEPS = st.one_of(
    st.tuples(st.just("append"), NAMES, st.integers(1, 40)),
    st.tuples(st.just("rotate"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("old"), NAMES, st.just(0)),
    st.tuples(st.just("cut"), NAMES, st.just(0)),
    st.tuples(st.just("copy"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("remove"), NAMES, st.just(0)),
    st.tuples(st.sampled_from(["flush", "flush", "look", "restart", "crash", "lost answer"]), NAMES, st.just(0)),
)


def do(node: Node, what: str, name: str, number: int) -> None:
    path = node.logs / name
    if what == "append":
        node.append(name, number)
    elif what == "rotate":
        rotate(node.logs, FORMS[name], number)
    elif what == "old" and path.exists():
        (node.logs / "old").mkdir(exist_ok=True)
        path.rename(node.logs / "old" / f"{node.lines}-{name}")
    elif what == "cut" and path.exists():
        os.truncate(path, 0)
    elif what == "copy" and path.exists():
        shutil.copy(path, node.logs / f"{name}-{node.lines}-{len(list(node.logs.iterdir()))}")
        if number:
            node.flush()
        os.truncate(path, 0)
    elif what == "remove":
        path.unlink(missing_ok=True)
    elif what == "flush":
        node.flush()
    elif what == "look":
        node.series.scan()
    elif what == "restart":
        node.restart()
    elif what == "crash":
        node.series.make()
        node.restart()
    elif what == "lost answer":
        node.flush(lost_answer=True)
        node.restart()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=3, max_size=40))
def test_whatever_happens_the_files_are_read_back_and_no_line_is_there_twice(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    """Appends, rotations, cuts, copies, removals, flushes, restarts and crashes in any order."""
    node = Node(tmp_path_factory.mktemp("random"))
    flushed: set[bytes] = set()
    for what, name, number in steps:
        do(node, what, name, number)
        if what in ("flush", "lost answer"):
            flushed |= {line for content in node.on_disk().values() for line in content.splitlines()}
    node.flush()
    kept, disk = node.read_all(), node.on_disk()
    assert {name: kept.get(name) for name in disk} == disk
    lines = Counter(line for content in kept.values() for line in content.splitlines())
    assert [line for line, times in lines.items() if times > 1] == []
    assert flushed <= set(lines)
    shutil.rmtree(node.home)


# Damage


def test_a_pack_that_is_cut_off_is_passed_over_and_sent_again(node: Node) -> None:
    """Its numbers are not used again, and what it held is still in the files."""
    for _ in range(3):
        node.append("a.log", 10)
        node.flush()
    newest = node.packs()[-1]
    newest.write_bytes(newest.read_bytes()[:-7])
    reader = node.reader()
    assert reader.damaged == 1
    assert reader.names["a.log"].size == 420
    node.restart()
    node.flush()
    assert node.read_all() == node.on_disk()
    assert len(node.packs()) == 4


def test_damaged_frames_are_filled_and_counted(node: Node) -> None:
    """Everything else keeps its offsets."""
    node.append("a.log", 10)
    node.flush()
    node.append("a.log", 10)
    node.flush()
    first = node.packs()[0]
    data = bytearray(first.read_bytes())
    data[20] ^= 0xFF
    first.write_bytes(data)
    reader = node.reader()
    content = asyncio.run(reader.read("a.log", 0, 1000))
    assert content == filler(210) + node.on_disk()["a.log"][210:]
    assert reader.damaged
    first.unlink()
    content = asyncio.run(node.reader().read("a.log", 100, 1000))
    assert content == filler(110) + node.on_disk()["a.log"][210:]


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_is_a_crash(node: Node, seed: int) -> None:
    """Any byte of any pack changed, or any pack cut anywhere: what is read is right or filled, never an exception."""
    dice = random.Random(seed)
    for _ in range(70):
        node.append("a.log", 3)
        node.append("b.log", 1)
        node.flush()
    path = dice.choice(node.packs())
    data = bytearray(path.read_bytes())
    if seed % 2:
        del data[dice.randrange(len(data)) :]
    else:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    disk = node.on_disk()
    for name, content in node.read_all().items():
        right = disk[name][: len(content)]
        wrong = [at for at in range(0, len(content), 21) if content[at : at + 21] != right[at : at + 21]]
        assert len(wrong) <= 3 * 64


def test_what_is_no_pack_is_said_to_be_none() -> None:
    for data in (b"", b"x" * 100, b"\0" * 20):
        with pytest.raises(DamagedPack):
            read_end(data)
        with pytest.raises(DamagedPack):
            unpack_frame(data, 10)


# Cost


def test_any_range_is_found_in_three_reads(node: Node) -> None:
    """After hundreds of packs: the newest tail, the root, a segment; then the data."""
    for number in range(300):
        node.append("a.log", 20, width=200)
        node.append(f"w-{number % 40}.out", 1)
        assert node.flush() == 1
    content = node.on_disk()["a.log"]
    for start in range(0, len(content), len(content) // 7):
        node.store.reads.clear()
        reader = node.reader()
        assert asyncio.run(reader.read("a.log", start, start + 500)) == content[start : start + 500]
        assert len(node.store.reads) <= 3 + 2  # at most two frames


def test_a_log_that_grows_by_a_line_per_flush_does_not_lie_in_a_thousand_places(node: Node) -> None:
    """Small pieces are repeated together now and then; they cost a few times their size, and save most reads."""
    for number in range(1100):
        node.append("slow.log", 1)
        node.append(f"w-{number % 50}.out", 1)
        assert node.flush() == 1
    reader = node.reader()
    node.store.reads.clear()
    assert asyncio.run(reader.read("slow.log", 0, 1 << 20)) == node.on_disk()["slow.log"]
    assert len(node.store.reads) < 50
    assert node.read_all() == node.on_disk()


def test_many_files_that_grow_do_not_make_more_checkpoints(node: Node) -> None:
    """Each adds an entry per file to the root, which is read as a whole."""
    for _ in range(12):
        for number in range(1100):
            node.append(f"w-{number}.out", 1)
        node.flush()
    assert len(node.reader().catalog.segments) == 1
    assert node.read_all() == node.on_disk()


@pytest.fixture
def long_series(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """As after weeks: many groups of segments, by several collectors."""
    monkeypatch.setattr(packs, "_PACKS_PER_SEGMENT", 3)
    monkeypatch.setattr(packs, "_MOST_PARTS", 8)
    for number in range(200):
        node.append("a.log", 5, width=200)
        node.append(f"w-{number % 20}.out", 1)
        if number % 70 == 69:
            (node.logs / f"w-{number % 20}.out").unlink()
            node.restart()
        assert node.flush() == 1
    return node


def test_the_root_of_a_long_series_stays_small(long_series: Node) -> None:
    """It says of a group of segments what it would say of one; and one more read finds what is old."""
    catalog = long_series.reader().catalog
    assert len(catalog.segments) <= 4
    assert len(catalog.groups) > 10
    content = long_series.read_all()
    assert {name: content[name] for name in long_series.on_disk()} == long_series.on_disk()
    streams = read_streams(long_series.home / "store" / PREFIX)
    assert sorted(stream.content for stream in streams) == sorted(content.values())
    long_series.store.reads.clear()
    assert asyncio.run(long_series.reader().read("a.log", 0, 500)) == content["a.log"][:500]
    assert len(long_series.store.reads) <= 4 + 2


def test_a_group_that_is_damaged_is_found_in_the_root_before_it(long_series: Node) -> None:
    for group in long_series.reader().catalog.groups:
        pack = long_series.home / "store" / PREFIX / group.place.pack
        data = bytearray(pack.read_bytes())
        data[group.place.at : group.place.at + group.place.size] = bytes(group.place.size)
        pack.write_bytes(data)
    content = long_series.read_all()
    assert {name: content[name] for name in long_series.on_disk()} == long_series.on_disk()


def test_the_last_thousand_lines_of_ten_gigabytes_cost_a_few_reads(node: Node) -> None:
    """The directories are those of 10 GB in 20,480 frames; all frames are the same one, to save our disk."""
    line = b"x" * 99 + b"\n"
    raw = line * 5000
    packs, size = 20 * 64, 10 * 2**30 // len(raw) * len(raw)
    compressor, segments, last = Compressor(), [], ""
    builder = PackBuilder(compressor)
    builder.add(0, 0, raw)
    builder.finish()
    frame = builder.ranges[0].frame
    data = b"".join(builder.parts)
    per_segment = size // len(raw) // (packs // 64) + 1

    async def tail() -> bytes:
        nonlocal last
        for number, first in enumerate(range(0, size // len(raw), per_segment)):
            count = min(per_segment, size // len(raw) - first)
            own = [Range(0, (first + at) * len(raw), len(raw), frame, 0) for at in range(count)]
            segment = compressor.directory(to_columns(own))
            place = Place("", len(data), len(segment))
            info = SegmentInfo(place, last, [0], [own[0].start], [own[-1].end])
            streams = [Stream(0, "raylet.out", size=own[-1].end)]
            root = compressor.directory(Root(streams, {}, [*segments, info]))
            base = Place("", len(data) + len(segment), len(root))
            end = end_of_pack(compressor.directory(Tail(number, 1, last, base, [], [], {}, to_columns([]))))
            whole = data + segment + root + end
            last = pack_name(number, len(whole), len(end))
            info.place = Place(last, place.at, place.size)
            segments.append(info)
            await node.store.put(f"{layout.node_packs_prefix(ref, 'ab' * 28)}/{last}", whole)
        node.store.reads.clear()
        logs = PackLogs(node.store, layout, ref)
        file = await find_file(logs, "ab" * 28, "raylet.out")
        assert file.size == size > 10**10
        start = await start_of_last_lines(logs, "ab" * 28, file.path, file.size, 1000)
        return await logs.read("ab" * 28, file.path, start, file.size)

    layout, ref = Layout(), SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")
    assert asyncio.run(tail()) == line * 1000
    assert len(node.store.reads) <= 5
    assert sum(size for _, size in node.store.reads) < 500_000


def test_refreshing_reads_one_tail(node: Node) -> None:
    """A reader that is up to date lists, and reads only what is new."""
    node.append("a.log")
    node.flush()
    reader = node.reader()
    node.store.reads.clear()
    asyncio.run(reader.refresh())
    assert node.store.reads == []
    node.append("a.log")
    node.flush()
    asyncio.run(reader.refresh())
    assert len(node.store.reads) == 1
    assert reader.names["a.log"].size == 42


# The fold


def test_the_fold_reads_event_logs_from_packs(node: Node) -> None:
    """A session that runs or has vanished has no whole files; half a last line is left for the next time."""
    layout, ref = Layout(), SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")
    events = node.logs / "events"
    events.mkdir()
    line = {"event_id": "1", "severity": "INFO", "message": "hello", "timestamp": "1790000000"}
    (events / "event_GCS.log").write_text(json.dumps(line) + '\n{"event_id": "2", "mess')
    (events / "other.log").write_text("x")
    sealed = node.series.make()
    assert sealed

    async def fold() -> list[tuple[object, ...]]:
        await node.store.put(f"{layout.node_packs_prefix(ref, 'ab' * 28)}/{sealed.name}", sealed.data)
        (source,) = await list_sources(node.store, layout, ref)
        assert source.kind is Kind.PACKED_LOG
        rows = Rows()
        async for _ in read_source(node.store, source, rows):
            pass
        return rows.rows("cluster_events")

    assert [row[0] for row in asyncio.run(fold())] == ["1"]
