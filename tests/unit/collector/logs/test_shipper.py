"""The log layouts: packs, plain files, or both."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.collector.logs import plain_shipper, tailer, tracked_file
from rayhistory.collector.logs.walk import open_inside
from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from support.log_shipping import FAIL, LAYOUT, NODE, REF, SUCCEED, LogNode, run_on_node


def stored_logs(node: LogNode) -> CombinedLogs:
    return CombinedLogs(*object_logs(node.store, LAYOUT, REF), PackLogs(node.store, LAYOUT, REF))


@pytest.mark.parametrize(("layout", "packs", "plain"), [("both", 1, 1), ("packs", 1, 0), ("plain", 0, 2)])
def test_log_layout_decides_what_is_stored(tmp_path: Path, layout: str, packs: int, plain: int) -> None:
    """With both, files up to the limit are also stored as plain files. Every layout reads back the same."""

    async def work(node: LogNode) -> None:
        node.append("small.log", "small\n")
        node.append("large.log", "large\n" * 1000)
        shipper = node.configured_shipper(log_layout=layout, log_plain_limit="1k")
        await shipper.finish()
        assert shipper.unshipped() == []
        assert sum(key.endswith(".pack") for key in node.store.puts) == packs
        assert sum(not key.endswith(".pack") for key in node.store.puts) == plain
        logs = stored_logs(node)
        assert await logs.nodes() == [NODE]
        assert [(file.path, file.size) for file in await logs.files(NODE)] == [("large.log", 6000), ("small.log", 6)]
        assert await logs.read(NODE, "large.log", 6, 12) == b"large\n"
        assert await logs.read(NODE, "small.log", 0, 100) == b"small\n"

    run_on_node(tmp_path, work)


@pytest.mark.slow
def test_unreadable_file_does_not_block_the_end_of_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as unshipped, and so is a file whose name no store accepts. An outage is still waited for."""

    def open_unless_closed(root: str, name: str) -> int:
        if name == "closed.log":
            raise PermissionError(13, "Permission denied", name)
        return open_inside(root, name)

    monkeypatch.setattr(plain_shipper, "open_inside", open_unless_closed)
    monkeypatch.setattr(tracked_file, "open_inside", open_unless_closed)

    async def work(node: LogNode) -> None:
        for name in ("fine.log", "closed.log", "a\nb.log"):
            node.append(name, f"{name}\n")
        shipper = node.configured_shipper()
        node.store.faults = [SUCCEED, *[FAIL] * 4]
        await asyncio.wait_for(shipper.finish(), 30)
        assert shipper.unshipped() == ["a\nb.log", "closed.log"]
        assert node.store.puts[1:] == [LAYOUT.log_key(REF, NODE, "fine.log")]
        assert await node.packed_files() == {"fine.log": "fine.log\n", "a\nb.log": "a\nb.log\n", "closed.log": ""}

    run_on_node(tmp_path, work)


@pytest.mark.parametrize("layout", ["both", "packs", "plain"])
def test_files_over_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """The collector's memory must not depend on the number of files."""
    for module in (plain_shipper, tailer):
        monkeypatch.setattr(module, "MAX_FILES", 5)

    async def work(node: LogNode) -> None:
        for number in range(8):
            node.append(f"{number}.log", "x\n")
        shipper = node.configured_shipper(log_layout=layout)
        await shipper.finish()
        (unshipped,) = shipper.unshipped()
        assert unshipped.startswith("(3 more")
        assert b"rayhistory_collector_log_files_over_limit 3.0" in node.telemetry.exposition()
        for size in (2, 7):
            shipped = await stored_logs(node).files(NODE)
            assert [file.size for file in shipped] == [size] * 5
            for file in shipped:
                node.append(file.path, "more\n")
            await shipper.finish()

    run_on_node(tmp_path, work)
