"""Packs hold the content of log files, whatever happens to the files and the collector."""

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayhistory.collector.logs import tailer
from support.packed_node import PREFIX, ROTATED_NAMES, PackedNode, rotate


@pytest.fixture
def node(tmp_path: Path) -> PackedNode:
    return PackedNode(tmp_path)


def test_one_pack_per_flush_holds_only_appended_bytes_of_all_files(node: PackedNode) -> None:
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


@pytest.mark.parametrize("name", ROTATED_NAMES)
def test_rotated_file_is_not_sent_again_and_is_read_under_its_new_name(node: PackedNode, name: str) -> None:
    """A file that rotation removes at last continues under the next number."""
    rotated_name = ROTATED_NAMES[name]
    node.append(name, 1000)
    node.flush()
    rotate(node.logs, rotated_name)
    node.append(name, 2)
    pack = node.series.build()
    assert pack
    assert pack.raw_size == (node.logs / name).stat().st_size
    node.restart()
    for _ in range(4):
        node.flush()
        rotate(node.logs, rotated_name)
        node.append(name, 3)
    node.flush()
    stored = node.read_all()
    assert {each: stored[each] for each in node.on_disk()} == node.on_disk()
    assert set(stored) - set(node.on_disk()) == {rotated_name.format(".4"), rotated_name.format(".5")}
    assert stored[rotated_name.format(".5")].count(b"\n") == 1000


def test_file_moved_to_old_is_followed(node: PackedNode) -> None:
    """Ray's log monitor moves the files of dead workers when it runs out of handles."""
    node.append("worker-a-1-2.out", 5)
    node.flush()
    node.append("worker-a-1-2.out", 5)
    (node.logs / "old").mkdir()
    (node.logs / "worker-a-1-2.out").rename(node.logs / "old" / "worker-a-1-2.out")
    node.flush()
    assert node.read_all() == node.on_disk()


def test_removed_file_stays_readable_under_its_name(node: PackedNode) -> None:
    node.append("worker-a-1-2.out", 5)
    node.flush()
    content = (node.logs / "worker-a-1-2.out").read_bytes()
    (node.logs / "worker-a-1-2.out").unlink()
    node.append("other.log")
    node.flush()
    assert node.read_all() == {"worker-a-1-2.out": content, **node.on_disk()}


def test_file_with_the_inode_of_a_file_that_was_removed_long_ago_is_a_new_file(node: PackedNode) -> None:
    """Output of many workers starts alike, so the removed file was taken for renamed, and its name was lost."""
    (node.logs / "worker-a-1-2.out").write_text("start\n")
    node.flush()
    removed = (node.logs / "worker-a-1-2.out").rename(
        node.home / "elsewhere"
    )  # no file system reuses an inode reliably
    for _ in range(10):
        node.append("other.log")
        node.flush()
    removed.write_text("start\nmore\n")
    removed.rename(node.logs / "worker-b-1-3.out")
    node.flush()
    assert node.read_all() == {"worker-a-1-2.out": b"start\n", **node.on_disk()}
    node.restart()
    node.append("worker-b-1-3.out")
    node.flush()
    assert node.read_all() == {"worker-a-1-2.out": b"start\n", **node.on_disk()}


@pytest.mark.parametrize("other", ["worker_10.log", "worker_1.more.log"])
def test_older_file_with_the_same_start_is_not_taken_for_a_copy_of_a_removed_file(node: PackedNode, other: str) -> None:
    (node.logs / "worker_1.log").write_text("start\n")
    (node.logs / other).write_text("start\nmore\n")
    node.flush()
    (node.logs / "worker_1.log").unlink()
    node.flush()
    assert node.read_all() == {"worker_1.log": b"start\n", **node.on_disk()}


def test_older_file_with_the_same_start_is_not_taken_for_a_copy_of_a_truncated_file(node: PackedNode) -> None:
    (node.logs / "worker_1.log").write_text("start\n")
    (node.logs / "worker_10.log").write_text("start\nmore\n")
    node.flush()
    os.truncate(node.logs / "worker_1.log", 0)
    node.flush()
    assert node.read_all() == {"worker_1.log.1": b"start\n", **node.on_disk()}


@pytest.mark.parametrize("new_lines", [0, 2, 50])
def test_truncated_file_starts_a_new_stream_and_keeps_the_old_one(node: PackedNode, new_lines: int) -> None:
    """Even if it has grown past its old size before the next scan."""
    node.append("a.log", 10)
    node.flush()
    before = (node.logs / "a.log").read_bytes()
    os.truncate(node.logs / "a.log", 0)
    node.append("a.log", new_lines)
    node.flush()
    assert node.read_all() == {"a.log.1": before, **node.on_disk()}


def test_removed_versions_of_one_name_are_limited_and_the_rest_is_counted_as_lost(
    node: PackedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's pack directory is read as a whole, and must not grow without end."""
    monkeypatch.setattr(tailer, "_MAX_REMOVED_VERSIONS", 20)
    for _ in range(25):
        node.append("a.log")
        node.flush()
        (node.logs / "a.log").unlink()
        node.flush()
    stored = b"".join(node.read_all().values())
    assert {int(line.split()[1]) for line in stored.splitlines()} == set(range(6, 26))
    assert node.series.tailer.lost_bytes == 5 * 21


def test_oldest_removed_files_make_room_for_new_ones(node: PackedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailer, "MAX_FILES", 5)
    for number in range(8):
        node.append(f"{number}.log")
        node.flush()
        if number < 6:
            (node.logs / f"{number}.log").unlink()
        node.flush()
    assert sorted(node.read_all()) == [f"{number}.log" for number in range(3, 8)]
    assert node.series.tailer.lost_bytes == 3 * 21
    assert node.series.tailer.excess == 0


@pytest.mark.parametrize("flush_between", [False, True])
def test_copy_and_truncate_stores_nothing_twice(node: PackedNode, flush_between: bool) -> None:
    """The stream continues in the copy, including lines written after the last flush."""
    node.append("a.log", 10)
    node.flush()
    node.append("a.log", 5)
    shutil.copy(node.logs / "a.log", node.logs / "a.log.1")
    if flush_between:
        node.flush()
    os.truncate(node.logs / "a.log", 0)
    node.append("a.log", 30)
    node.flush()
    assert node.read_all() == node.on_disk()


def test_only_the_last_state_dump_is_kept(node: PackedNode) -> None:
    """Ray rewrites debug_state.txt every ten seconds: there is no `.1` for each version."""
    for number in range(5):
        (node.logs / "debug_state.txt").write_text(f"state {number}\n" * (10 - number))
        node.flush()
    assert node.read_all() == {"debug_state.txt": b"state 4\n" * 6}
    node.restart()
    node.append("x.log")
    node.flush()
    assert set(node.read_all()) == {"debug_state.txt", "x.log"}


def test_links_inside_the_directory_are_followed_and_others_ignored(node: PackedNode) -> None:
    """Pipes and names that are not UTF-8 are ignored too."""
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
    assert len(node.packs()) == 1


@pytest.mark.parametrize(
    ("replaced", "after_folders"), [("a.log", 3), ("folder", 3), ("folder", 1), ("folder", 2), ("", 3)]
)
def test_file_or_folder_replaced_with_a_link_during_the_scan_is_not_read(
    node: PackedNode, monkeypatch: pytest.MonkeyPatch, replaced: str, after_folders: int
) -> None:
    """A process that writes logs must not get the collector's own files stored as its logs."""
    for name in ("a.log", "folder/a.log", "folder/deep/a.log"):
        node.append(name)
        outside = node.home / "outside" / name
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_text("secret " * 100)
        outside.with_name("secret").write_text("secret")
    scandir, remaining = os.scandir, after_folders

    @contextmanager
    def scan_and_replace(directory: int | str) -> Iterator[Iterator[os.DirEntry[str]]]:
        nonlocal remaining
        with scandir(directory) as inside:
            yield inside
        remaining -= 1
        if remaining == 0:
            (node.logs / replaced).rename(node.home / "was")
            (node.logs / replaced).symlink_to(node.home / "outside" / replaced)

    monkeypatch.setattr(os, "scandir", scan_and_replace)
    node.series.scan()
    monkeypatch.undo()
    assert remaining <= 0
    due = node.series.tailer.due(final=True)
    content = b"".join(data for file in due for _, _, data in node.series.tailer.read(file, 1 << 20))
    assert b"secret" not in content
    node.flush()
    assert not any("secret" in name or b"secret" in content for name, content in node.read_all().items())


@pytest.mark.slow
def test_binary_sparse_and_long_line_files_are_read_back_exactly(node: PackedNode) -> None:
    (node.logs / "binary").write_bytes(os.urandom(3_000_000))
    (node.logs / "line").write_bytes(b"x" * 10_000_000 + b"\nend")
    with (node.logs / "sparse").open("wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
    node.flush()
    assert node.read_all() == node.on_disk()
    assert sum(path.stat().st_size for path in node.packs()) < 4_000_000


@pytest.mark.slow
def test_large_backlog_is_sent_in_packs_of_bounded_size(node: PackedNode) -> None:
    """Small files go with the first of them."""
    (node.logs / "huge.out").write_bytes(os.urandom(1 << 20) * 40)
    node.append("small.log")
    first = node.series.build()
    assert first
    assert first.has_more
    assert len(first.data) < 10 << 20
    asyncio.run(node.store.put(f"{PREFIX}/{first.name}", first.data))
    assert node.read_all()["small.log"] == node.on_disk()["small.log"]
    node.flush()
    assert node.read_all() == node.on_disk()
    assert len(node.packs()) > 2


@pytest.mark.slow
def test_file_that_grows_faster_than_uploads_does_not_delay_others(node: PackedNode) -> None:
    block = os.urandom(1 << 20)
    for number in range(8):
        with (node.logs / "fast.out").open("ab") as file:  # twice as much as one pack holds
            file.write(block * 16)
        node.append("slow.log")
        pack = node.series.build()
        assert pack
        assert pack.has_more
        assert len(pack.data) < 10 << 20
        asyncio.run(node.store.put(f"{PREFIX}/{pack.name}", pack.data))
        content = asyncio.run(node.reader().read("slow.log", 0, 1 << 20))
        assert content.count(b"\n") >= number, "the other file is more than one pack late"
    node.flush()
    assert node.read_all() == node.on_disk()


# Restart


def test_restarted_collector_sends_nothing_twice(node: PackedNode) -> None:
    """It resumes from the store alone, even if the response to the last PUT was lost."""
    node.append("a.log", 100)
    node.flush(lose_response=True)
    node.restart()
    assert node.series.build() is None
    node.append("a.log", 1)
    pack = node.series.build()  # killed before it was sent
    assert pack
    assert pack.raw_size == 21
    node.restart()
    node.flush()
    assert node.read_all() == node.on_disk()


def test_files_with_new_inodes_are_identified_by_their_content(node: PackedNode) -> None:
    """Inodes change when the directory is copied or mounted again."""
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
    pack = node.series.build()
    assert pack
    assert pack.raw_size == 21 + len(node.on_disk()["b.log"])
    node.restart()
    node.flush()
    assert {name: content for name, content in node.read_all().items() if name != "b.log.1"} == node.on_disk()


# Random operations

NAMES = st.sampled_from(sorted(ROTATED_NAMES))
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), NAMES, st.integers(1, 40)),
    st.tuples(st.just("rotate"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("move to old"), NAMES, st.just(0)),
    st.tuples(st.just("truncate"), NAMES, st.just(0)),
    st.tuples(st.just("copy and truncate"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("remove"), NAMES, st.just(0)),
    st.tuples(st.sampled_from(["flush", "flush", "scan", "restart", "crash", "lost response"]), NAMES, st.just(0)),
)


def execute(node: PackedNode, operation: str, name: str, number: int) -> None:
    path = node.logs / name
    if operation == "append":
        node.append(name, number)
    elif operation == "rotate":
        rotate(node.logs, ROTATED_NAMES[name], number)
    elif operation == "move to old" and path.exists():
        (node.logs / "old").mkdir(exist_ok=True)
        path.rename(node.logs / "old" / f"{node.line_count}-{name}")
    elif operation == "truncate" and path.exists():
        os.truncate(path, 0)
    elif operation == "copy and truncate" and path.exists():
        shutil.copy(path, node.logs / f"{name}-{node.line_count}-{len(list(node.logs.iterdir()))}")
        if number:
            node.flush()
        os.truncate(path, 0)
    elif operation == "remove":
        path.unlink(missing_ok=True)
    elif operation == "flush":
        node.flush()
    elif operation == "scan":
        node.series.scan()
    elif operation == "restart":
        node.restart()
    elif operation == "crash":
        node.series.build()
        node.restart()
    elif operation == "lost response":
        node.flush(lose_response=True)
        node.restart()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, min_size=3, max_size=40))
def test_files_are_read_back_and_no_line_is_stored_twice_after_any_operations(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int]]
) -> None:
    node = PackedNode(tmp_path_factory.mktemp("random"))
    flushed: set[bytes] = set()
    for operation, name, number in operations:
        execute(node, operation, name, number)
        if operation in ("flush", "lost response"):
            flushed |= {line for content in node.on_disk().values() for line in content.splitlines()}
    node.flush()
    stored, disk = node.read_all(), node.on_disk()
    assert {name: stored.get(name) for name in disk} == disk
    lines = Counter(line for content in stored.values() for line in content.splitlines())
    assert [line for line, times in lines.items() if times > 1] == []
    assert flushed <= set(lines)
    shutil.rmtree(node.home)
