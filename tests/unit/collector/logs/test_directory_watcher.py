"""Changes of log files are noticed with inotify, and log files are polled without it."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.collector.logs.directory_watcher import DirectoryWatcher
from support.log_shipping import LogNode, background, run_on_node


def test_watcher_reports_a_new_file_before_the_timeout(tmp_path: Path) -> None:
    async def work(node: LogNode) -> None:
        with DirectoryWatcher() as watcher:
            watcher.follow([str(node.logs)])
            change = asyncio.ensure_future(watcher.wait(10))
            await asyncio.sleep(0.05)
            node.append("a.log", "x")
            assert await asyncio.wait_for(change, 5)

    run_on_node(tmp_path, work)


def test_log_files_are_polled_without_inotify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes often use up the kernel's limits."""

    def fail(**_: object) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr("rayhistory.collector.logs.directory_watcher.INotify", fail)

    async def work(node: LogNode) -> None:
        with DirectoryWatcher() as watcher:
            watcher.follow([str(tmp_path)])
            assert not await watcher.wait(0.01)
        async with background(node.pack_shipper().run()):
            node.append("a.log", "one\n")
            await node.wait_until_packed("a.log", "one")

    run_on_node(tmp_path, work)
