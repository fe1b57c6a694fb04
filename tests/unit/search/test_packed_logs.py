"""Searches in packs find what ripgrep finds on the node's disk: across flushes, frames, rotations and truncations."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore
from support.packed_node import PREFIX, ROTATED_NAMES, PackedNode, rotate
from support.ripgrep import ripgrep

NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
REF = SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")


class NodeLayout(Layout):
    """Finds the packs of the one node where the test writes them."""

    def node_packs_prefix(self, ref: SessionRef, node: str) -> str:
        return PREFIX

    def packs_prefix(self, ref: SessionRef) -> str:
        return PREFIX.rpartition("/")[0]


def search(node: PackedNode, query: SearchQuery) -> list[tuple[str, int | None, int, str]]:
    class OneNode(PackLogs):
        async def nodes(self) -> list[str]:
            return [NODE]

    async def run() -> list[tuple[str, int | None, int, str]]:
        scanner = Scanner(1, 1000)
        scan = Scan(scanner, OneNode(node.store, NodeLayout(""), REF), query)
        lines = [(each.path, each.line, each.offset, each.text) async for some in scan.lines() for each in some]
        scanner.close()
        assert scan.complete
        return sorted(lines, key=lambda line: (line[0], line[1] or 0))

    return asyncio.run(run())


def on_disk(node: PackedNode, text: str) -> list[tuple[str, int, int, str]]:
    return [(path, line, offset, found.decode()) for path, line, offset, found, _ in ripgrep(node.logs, text, "-i")]


@pytest.mark.parametrize("text", ["line 1", "7 x", "line"])
def test_lines_across_flushes_and_rotations_are_found(tmp_path: Path, text: str) -> None:
    node = PackedNode(tmp_path)
    for number in range(12):
        for name in ROTATED_NAMES:
            node.append(name, lines=5, width=40)
            with (node.logs / name).open("ab") as file:
                file.write(b"line without an end ")  # the next flush continues it
        node.flush()
        if number == 6:
            rotate(node.logs, ROTATED_NAMES["raylet.out"])
    assert search(node, SearchQuery(text, limit=1000)) == on_disk(node, text)


def test_a_truncated_file_keeps_its_old_lines_under_another_name(tmp_path: Path) -> None:
    node = PackedNode(tmp_path)
    node.append("raylet.out", lines=10)
    node.flush()
    (node.logs / "raylet.out").write_bytes(b"")
    node.append("raylet.out", lines=3)
    node.flush()
    texts = [line[3] for line in search(node, SearchQuery("line", limit=1000))]
    assert sorted(int(text.split()[1]) for text in texts) == list(range(1, 14))


@pytest.mark.parametrize("old", [False, True], ids=["layout of today", "layout before v1.7"])
def test_log_files_that_kuberay_stored_are_found(tmp_path: Path, old: bool) -> None:
    layout, logs, store = Layout("root"), tmp_path / "logs", LocalStore(tmp_path / "store")
    prefix = layout.v1_6_logs_prefix(REF, NODE) if old else layout.logs_prefix(REF, NODE)
    files = {"raylet.out": b"a line\nanother\r\nno end of the LINE", "old/worker.err": b"\xff\xfe line\0\n" * 500}
    for path, data in files.items():
        (logs / path).parent.mkdir(parents=True, exist_ok=True)
        (logs / path).write_bytes(data)

    async def run() -> list[tuple[str, int | None, int]]:
        for path, data in files.items():
            await store.put(f"{prefix}/{path}", data)
        scanner = Scanner(1, 1000)
        scan = Scan(scanner, CombinedLogs(*object_logs(store, layout, REF)), SearchQuery("line", limit=1000))
        found = [(each.path, each.line, each.offset) async for some in scan.lines() for each in some]
        scanner.close()
        return sorted(found)

    expected = [(path, line, offset) for path, line, offset, *_ in ripgrep(logs, "line", "-i")]
    assert len(expected) == 502
    assert asyncio.run(run()) == expected
