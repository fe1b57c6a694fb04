"""What bad days have found, each as a test of its own."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from faults.victim import NODE, SESSION, Sender, Victim
from rayhistory.collector import tail
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.packs import PackSeries
from rayhistory.collector.shipping import PackShipper
from rayhistory.collector.walk import Walked, walk
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Catalog
from rayhistory.storage.local import LocalStore
from rayhistory.storage.seam import ObjectInfo

PREFIX = "logs/node"


class Node:
    """A directory of logs, packs made of it, and the store that they go to."""

    def __init__(self, home: Path) -> None:
        self.logs = home / "logs"
        self.logs.mkdir()
        self.store = LocalStore(home / "store")
        self.series = PackSeries(self.logs, Catalog())

    def append(self, name: str, text: str) -> None:
        with (self.logs / name).open("a") as file:
            file.write(text)

    def copy_and_cut(self, name: str) -> None:
        shutil.copyfile(self.logs / name, self.logs / f"{name}.1")
        os.truncate(self.logs / name, 0)

    def flush(self) -> None:
        while sealed := self.series.make():
            asyncio.run(self.store.put(f"{PREFIX}/{sealed.name}", sealed.data))

    def stored(self) -> dict[str, str]:
        async def read() -> dict[str, str]:
            reader = PackReader(self.store, PREFIX)
            await reader.refresh()
            return {name: (await reader.read(name, 0, 1 << 30)).decode() for name in reader.names}

        return asyncio.run(read())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield Node(tmp_path)


def test_a_log_that_is_copied_and_cut_while_the_directory_is_read_is_there_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut was seen and the copy was not, so the file was kept as one that had ended, and its copy as another."""
    node.append("a.log", "shipped\n")
    node.flush()
    node.append("a.log", "not yet\n")

    def walk_and_miss_the_copy(root: str) -> Walked | None:
        monkeypatch.setattr(tail, "walk", walk)
        node.copy_and_cut("a.log")
        walked = walk(root)
        assert walked
        return walked._replace(entries=[entry for entry in walked.entries if entry.name != "a.log.1"])

    monkeypatch.setattr(tail, "walk", walk_and_miss_the_copy)
    node.flush()
    node.append("a.log", "new\n")
    node.flush()
    assert node.stored() == {"a.log": "new\n", "a.log.1": "shipped\nnot yet\n"}


def test_a_log_that_is_copied_and_cut_while_another_is_looked_for_is_there_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look at the directory, for the copy of the other, was the first that saw the cut."""
    for name in ("a.log", "b.log"):
        node.append(name, f"{name} shipped\n")
    node.flush()
    looks = 0

    def walk_and_miss_copies(root: str) -> Walked | None:
        nonlocal looks
        looks += 1
        if looks > 2:
            return walk(root)
        node.copy_and_cut("ba"[looks - 1] + ".log")
        walked = walk(root)
        assert walked
        return walked._replace(entries=[entry for entry in walked.entries if entry.name != "a.log.1"])

    monkeypatch.setattr(tail, "walk", walk_and_miss_copies)
    node.flush()
    assert node.stored() == {"a.log": "", "b.log": "", "a.log.1": "a.log shipped\n", "b.log.1": "b.log shipped\n"}


def test_a_log_that_is_copied_and_cut_between_looking_and_reading_is_there_once(node: Node) -> None:
    """It had grown past its old length when it was read, and its copy had not been seen."""
    node.append("a.log", "shipped\n")
    node.flush()
    node.append("a.log", "not yet\n")
    node.series.scan()
    node.copy_and_cut("a.log")
    node.append("a.log", "new\n" * 100)
    tailer = node.series.tailer
    assert not [piece for file in tailer.due(final=False) for piece in tailer.read(file, 1 << 20)]
    node.flush()
    assert node.stored() == {"a.log": "new\n" * 100, "a.log.1": "shipped\nnot yet\n"}


def test_a_log_that_is_copied_cut_and_rotated_at_once_is_there_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy had its next name already when it was to be compared, and was taken for another file."""
    node.append("a.log", "shipped\n")
    node.flush()
    node.append("a.log", "not yet\n")
    node.copy_and_cut("a.log")

    def walk_and_rotate(root: str) -> Walked | None:
        walked = walk(root)
        if (node.logs / "a.log.1").exists() and len(calls) == 1:
            (node.logs / "a.log.1").rename(node.logs / "a.log.2")
        calls.append(root)
        return walked

    calls: list[str] = []
    monkeypatch.setattr(tail, "walk", walk_and_rotate)
    node.flush()
    node.append("a.log", "new\n")
    node.flush()
    assert node.stored() == {"a.log": "new\n", "a.log.2": "shipped\nnot yet\n"}


@pytest.mark.parametrize("cut", [True, False])
def test_log_bytes_that_vanish_before_they_are_read_are_counted(tmp_path: Path, cut: bool) -> None:
    """Nobody was told when a file was cut, and when one was removed only the collector's own log."""
    log = tmp_path / "logs" / "a.log"
    log.parent.mkdir()
    metrics = Metrics()

    async def day() -> None:
        shipper = PackShipper(log.parent, LocalStore(tmp_path / "store"), lambda: PREFIX, metrics, interval=1)
        log.write_text("shipped\n")
        await shipper.flush()
        with log.open("a") as file:
            file.write("seen\n")
        assert shipper.left() == ["a.log"]
        if cut:
            os.truncate(log, 0)
        else:
            log.unlink()
        await shipper.flush()
        assert shipper.left() == []

    asyncio.run(day())
    assert b"rayhistory_collector_log_bytes_lost_total 5.0" in metrics.exposition()


class LateListing(LocalStore):
    """A real store whose listings do not tell of the newest objects yet."""

    hidden = 0

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list_all(prefix, start_after)]
        for info in found[: max(0, len(found) - self.hidden)]:
            yield info


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_logs_are_all_read_though_a_listing_was_late_when_the_collector_came_back(tmp_path: Path, hidden: int) -> None:
    """It began again with numbers that were taken, and readers went on where the newer of the two had stopped."""
    log = tmp_path / "logs" / "a.log"
    log.parent.mkdir()
    store = LateListing(tmp_path / "store")

    async def day() -> str:
        for life in range(2):
            shipper = PackShipper(log.parent, store, lambda: PREFIX, Metrics(), interval=1)
            for line in range(4 if life == 0 else 1):
                with log.open("a") as file:
                    file.write(f"{life} {line}\n")
                await shipper.flush()
            store.hidden = hidden if life == 0 else 0
        reader = PackReader(store, PREFIX)
        await reader.refresh()
        return (await reader.read("a.log", 0, 1 << 20)).decode()

    assert asyncio.run(day()) == log.read_text()


def test_a_collector_that_comes_back_when_ray_has_just_gone_brings_the_session_to_its_end() -> None:
    """It saw a session that was over, left it alone, and was told to end before anybody picked up the last logs."""
    with Victim("--role=Head", "--event-rotation-interval=200ms", "--log-interval=200ms") as victim:
        log = victim.home / SESSION / "logs" / "worker.out"
        victim.start()
        with Sender(victim.port, 1) as sender:
            log.write_text("first\n")
            victim.until(lambda: list(victim.store.rglob("*.pack")) and sender.statuses.get(200, 0) > 5)
        victim.until(lambda: list(victim.store.rglob("*.jsonl.gz")))
        victim.kill()
        log.write_text("first\nlast\n")
        victim.end_ray()
        victim.start()
        assert victim.end() == 0
        (whole,) = victim.store.rglob(f"{NODE}/logs/worker.out")
        assert whole.read_text() == "first\nlast\n"
        assert list(victim.store.rglob(f"{SESSION}/end.json"))
