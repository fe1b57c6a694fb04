"""What bad days have found, each as a test of its own."""

import asyncio
import dataclasses
import http.client
import json
import os
import random
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from faults.disks import fill
from faults.verdict import judge
from faults.victim import NODE, SESSION, Sender, Victim, event
from rayhistory.collector import tail
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.packs import PackSeries
from rayhistory.collector.service import Collector
from rayhistory.collector.shipping import PackShipper
from rayhistory.collector.walk import Walked, walk
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Catalog
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage.local import LocalStore
from rayhistory.storage.seam import ObjectInfo

PREFIX = "logs/node"
OTHER = "session_2026-11-15_18-00-00_000000_1"


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

    def walk_and_miss_the_copy(root: str, *_: object) -> Walked | None:
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

    def walk_and_miss_copies(root: str, *_: object) -> Walked | None:
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

    def walk_and_rotate(root: str, *_: object) -> Walked | None:
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


def test_logs_that_rotation_has_removed_stay_readable(node: Node) -> None:
    """Only the last eight were kept, as of a file that is cut again and again, and the rest was counted nowhere."""
    for number in range(30):
        node.append("raylet.out", f"{number}\n")
        node.flush()
        for older, newer in (("raylet.2.out", "raylet.1.out"), ("raylet.1.out", "raylet.out")):
            if (node.logs / newer).exists():
                (node.logs / newer).rename(node.logs / older)
        node.flush()
    assert sorted(map(int, node.stored().values())) == list(range(30))
    assert node.series.tailer.lost == 0


def post(victim: Victim, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", victim.port, timeout=20)
    try:
        connection.request("POST", "/v1/events", body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_events_of_a_ray_that_is_not_seen_are_stored_though_an_older_session_is_seen() -> None:
    """As long as `session_latest` led to a session that was over, nobody kept the one whose events came."""
    with Victim("--role=Head", "--event-rotation-interval=200ms", "--log-interval=200ms") as victim:
        victim.begin_session(OTHER)
        victim.end_ray()
        shutil.rmtree(victim.home / SESSION)
        victim.start()
        for session in (SESSION, SESSION.replace("19-18", "20-18")):  # and Ray may be started again
            batch = [event(session, random.Random(1)) | {"sessionName": session}]
            assert post(victim, json.dumps(batch).encode()) == 200
            victim.until(lambda session=session: list(victim.store.rglob(f"{session}/**/*.jsonl.gz")))
            victim.until(lambda session=session: list(victim.store.rglob(f"{session}/start.json")))


def wait_for_a_session(store: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(store.rglob("start.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("disk", ["2m"], indirect=True)
def test_a_full_disk_at_the_end_costs_neither_the_seal_nor_the_record(disk: Path, tmp_path: Path) -> None:
    """What was set aside in the last moment could not be noted, and the session was not closed because of that."""
    directory = disk / SESSION
    directory.joinpath("sockets").mkdir(parents=True)
    directory.joinpath("logs").mkdir()
    directory.joinpath(f"metrics_export_port_{NODE}").write_text("1")
    (disk / "session_latest").symlink_to(directory)
    settings = dataclasses.replace(
        resolve(COLLECTOR, {}, {"LOCAL_STORAGE_DIR": str(tmp_path)})[0],
        role="Head",
        ray_tmp_root=str(disk),
        event_data_dir=str(disk),
        ray_dashboard_address="http://127.0.0.1:9",
        metrics_interval=0.0,
    )

    async def day() -> None:
        collector = Collector(settings, "test", LocalStore(tmp_path))
        with socket.socket(socket.AF_UNIX) as raylet:
            raylet.bind(str(directory / "sockets" / "raylet"))
            raylet.listen()
            await collector.start()
            await asyncio.to_thread(wait_for_a_session, tmp_path)
        await asyncio.to_thread(fill, disk / "somebody-elses")

        async def last_post() -> None:
            transport = httpx.ASGITransport(collector.app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                assert (await client.post("/v1/events", content=b"not JSON")).status_code == 200

        await collector.end(last_post)

    asyncio.run(day())
    assert list(tmp_path.rglob(f"{SESSION}/end.json"))
    (seal,) = tmp_path.rglob(f"seals/**/{NODE}.json")
    assert json.loads(seal.read_bytes())["set_aside"] == 1


@pytest.mark.parametrize("disk", ["1m"], indirect=True)
def test_a_spool_that_fills_its_own_disk_is_emptied_when_the_store_is_back(disk: Path) -> None:
    """The files that were to be uploaded needed as much room as the spool, so that it stayed full for ever."""
    with Victim(spool=disk / "spool", FAULT_STORE="1.0") as victim:
        victim.start()
        with Sender(victim.port, 5, largest=400) as sender:
            victim.until(lambda: sender.statuses.get(503, 0) > 5)
        victim.recover()
        assert post(victim, json.dumps([event("last", random.Random(1))]).encode()) == 200
        assert victim.end() == 0
        verdict = judge(victim.store, sender.acked | {"last"})
        assert not verdict.missing
        assert not verdict.twice


def test_a_batch_larger_than_the_spool_is_set_aside() -> None:
    """It was refused however empty the spool was, and Ray would have sent it for ever, and nothing after it."""
    with Victim("--event-max-disk-mb=1") as victim:
        victim.start()
        batch = [event(str(number), random.Random(number)) for number in range(4000)]
        assert post(victim, json.dumps(batch).encode()) == 200
        assert 'set_aside_total{reason="too large"} 1.0' in victim.get("/metrics")[1]
        assert post(victim, json.dumps(batch[:100]).encode()) == 200
        assert victim.end() == 0
        verdict = judge(victim.store, {each["eventId"] for each in batch[:100]})
        assert not verdict.missing
