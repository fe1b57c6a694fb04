"""One test for each defect that fault schedules and reviews found."""

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

from faults.collector_under_test import NODE, SESSION, CollectorUnderTest, Sender, event
from faults.disks import fill_disk
from faults.stored_state import read_state
from rayhistory.collector.logs import tailer
from rayhistory.collector.logs.pack_series import PackSeries
from rayhistory.collector.logs.pack_shipper import PackShipper
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.logs.walk import WalkResult, walk
from rayhistory.collector.service import Collector
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.telemetry import Telemetry
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_reader import PackReader
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import ObjectInfo

PREFIX = "logs/node"
OLDER_SESSION = "session_2026-11-15_18-00-00_000000_1"


class ShippedLogs:
    """A log directory whose packs are written to a store."""

    def __init__(self, home: Path) -> None:
        self.logs = home / "logs"
        self.logs.mkdir()
        self.store = LocalStore(home / "store")
        self.series = PackSeries(self.logs, PackDirectory())

    def append(self, name: str, text: str) -> None:
        with (self.logs / name).open("a") as file:
            file.write(text)

    def copy_and_truncate(self, name: str) -> None:
        shutil.copyfile(self.logs / name, self.logs / f"{name}.1")
        os.truncate(self.logs / name, 0)

    def flush(self) -> None:
        while sealed := self.series.build():
            asyncio.run(self.store.put(f"{PREFIX}/{sealed.name}", sealed.data))

    def stored(self) -> dict[str, str]:
        """Return the content of all stored log files, by name."""

        async def read() -> dict[str, str]:
            reader = PackReader(self.store, PREFIX)
            await reader.refresh()
            return {name: (await reader.read(name, 0, 1 << 30)).decode() for name in reader.files}

        return asyncio.run(read())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ShippedLogs]:
    yield ShippedLogs(tmp_path)


def test_log_copied_and_truncated_during_the_directory_walk_is_stored_once(
    node: ShippedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk sees the truncation but not yet the copy."""
    node.append("a.log", "shipped\n")
    node.flush()
    node.append("a.log", "not yet\n")

    def walk_without_the_copy(root: str, *_: object) -> WalkResult | None:
        monkeypatch.setattr(tailer, "walk", walk)
        node.copy_and_truncate("a.log")
        walked = walk(root)
        assert walked
        return walked._replace(entries=[entry for entry in walked.entries if entry.name != "a.log.1"])

    monkeypatch.setattr(tailer, "walk", walk_without_the_copy)
    node.flush()
    node.append("a.log", "new\n")
    node.flush()
    assert node.stored() == {"a.log": "new\n", "a.log.1": "shipped\nnot yet\n"}


def test_log_copied_and_truncated_during_a_second_walk_is_stored_once(
    node: ShippedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another log's missing copy causes a second walk, which is the first to see this truncation."""
    for name in ("a.log", "b.log"):
        node.append(name, f"{name} shipped\n")
    node.flush()
    walks = 0

    def walk_without_copies(root: str, *_: object) -> WalkResult | None:
        nonlocal walks
        walks += 1
        if walks > 2:
            return walk(root)
        node.copy_and_truncate("ba"[walks - 1] + ".log")
        walked = walk(root)
        assert walked
        return walked._replace(entries=[entry for entry in walked.entries if entry.name != "a.log.1"])

    monkeypatch.setattr(tailer, "walk", walk_without_copies)
    node.flush()
    assert node.stored() == {"a.log": "", "b.log": "", "a.log.1": "a.log shipped\n", "b.log.1": "b.log shipped\n"}


def test_log_copied_and_truncated_between_walk_and_read_is_stored_once(node: ShippedLogs) -> None:
    """The new content is longer than the old one when the file is read, and the walk did not see the copy."""
    node.append("a.log", "shipped\n")
    node.flush()
    node.append("a.log", "not yet\n")
    node.series.scan()
    node.copy_and_truncate("a.log")
    node.append("a.log", "new\n" * 100)
    tailer = node.series.tailer
    assert not [piece for file in tailer.due(final=False) for piece in tailer.read(file, 1 << 20)]
    node.flush()
    assert node.stored() == {"a.log": "new\n" * 100, "a.log.1": "shipped\nnot yet\n"}


def test_log_copied_truncated_and_rotated_during_one_walk_is_stored_once(
    node: ShippedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is renamed before it is compared with the truncated file."""
    node.append("a.log", "shipped\n")
    node.flush()
    node.append("a.log", "not yet\n")
    node.copy_and_truncate("a.log")

    def walk_and_rotate(root: str, *_: object) -> WalkResult | None:
        walked = walk(root)
        if (node.logs / "a.log.1").exists() and len(calls) == 1:
            (node.logs / "a.log.1").rename(node.logs / "a.log.2")
        calls.append(root)
        return walked

    calls: list[str] = []
    monkeypatch.setattr(tailer, "walk", walk_and_rotate)
    node.flush()
    node.append("a.log", "new\n")
    node.flush()
    assert node.stored() == {"a.log": "new\n", "a.log.2": "shipped\nnot yet\n"}


@pytest.mark.parametrize("truncated", [True, False])
def test_log_bytes_removed_before_they_are_read_are_counted(tmp_path: Path, truncated: bool) -> None:
    """Bytes can vanish by truncation or by removal of the file."""
    log = tmp_path / "logs" / "a.log"
    log.parent.mkdir()
    telemetry = Telemetry()

    async def run() -> None:
        store, starts = LocalStore(tmp_path / "store"), SeriesStarts(PrivateDirectory(tmp_path / "spool"))
        shipper = PackShipper(log.parent, store, lambda: PREFIX, telemetry, starts=starts, interval=1)
        log.write_text("shipped\n")
        await shipper.flush()
        with log.open("a") as file:
            file.write("seen\n")
        assert shipper.unshipped() == ["a.log"]
        if truncated:
            os.truncate(log, 0)
        else:
            log.unlink()
        await shipper.flush()
        assert shipper.unshipped() == []

    asyncio.run(run())
    assert b"rayhistory_collector_log_bytes_lost_total 5.0" in telemetry.exposition()


class StaleListingStore(LocalStore):
    """A store whose listings lack the newest objects."""

    hidden = 0
    listed: set[str] | None = None
    """If set, all that listings have."""

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list_all(prefix, start_after)]
        for info in found[: max(0, len(found) - self.hidden)]:
            if self.listed is None or info.key in self.listed:
                yield info

    async def keys(self) -> set[str]:
        return {info.key async for info in super().list_all("")}


class RestartedShipper:
    """A log file, and shippers that ship it one after the other from one node to one store."""

    def __init__(self, home: Path) -> None:
        self.store = StaleListingStore(home / "store")
        self._log = home / "logs" / "a.log"
        self._log.parent.mkdir()
        self._spool = home / "spool"

    async def ship(self, *lines: str) -> None:
        """Start a shipper, and flush after each line."""
        starts = SeriesStarts(PrivateDirectory(self._spool))
        shipper = PackShipper(self._log.parent, self.store, lambda: PREFIX, Telemetry(), starts=starts, interval=1)
        for line in lines:
            with self._log.open("a") as file:
                file.write(f"{line}\n")
            await shipper.flush()

    async def check(self) -> None:
        """Compare the log with what a reader finds that sees all objects."""
        self.store.hidden, self.store.listed = 0, None
        reader = PackReader(self.store, PREFIX)
        await reader.refresh()
        assert (await reader.read("a.log", 0, 1 << 20)).decode() == self._log.read_text()


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_logs_are_complete_after_a_restart_with_a_stale_listing(tmp_path: Path, hidden: int) -> None:
    """The restarted collector must not reuse the numbers of packs that the listing lacks."""

    async def run() -> None:
        node = RestartedShipper(tmp_path)
        await node.ship("one", "two", "three", "four")
        node.store.hidden = hidden
        await node.ship("five")
        await node.check()

    asyncio.run(run())


@pytest.mark.parametrize("packs_listed", [True, False])
def test_logs_are_complete_after_two_restarts_with_the_same_listing(tmp_path: Path, packs_listed: bool) -> None:
    """The second restart must not choose the numbers of the first, whose packs no listing has shown yet."""

    async def run() -> None:
        node = RestartedShipper(tmp_path)
        await node.ship("one", "two")
        node.store.listed = await node.store.keys() if packs_listed else set()
        await node.ship("three", "four", "five")
        await node.ship("six")
        await node.check()

    asyncio.run(run())


def test_collector_restarted_after_ray_exited_ends_the_session() -> None:
    """The collector gets SIGTERM right after its restart, before the session counts as orphaned."""
    with CollectorUnderTest("--role=Head", "--event-rotation-interval=200ms", "--log-interval=200ms") as collector:
        log = collector.home / SESSION / "logs" / "worker.out"
        collector.start()
        with Sender(collector.port, 1) as sender:
            log.write_text("first\n")
            collector.wait_until(lambda: list(collector.store.rglob("*.pack")) and sender.statuses.get(200, 0) > 5)
        collector.wait_until(lambda: list(collector.store.rglob("*.jsonl.gz")))
        collector.kill()
        log.write_text("first\nlast\n")
        collector.end_ray()
        collector.start()
        assert collector.end() == 0
        (whole_file,) = collector.store.rglob(f"{NODE}/logs/worker.out")
        assert whole_file.read_text() == "first\nlast\n"
        assert list(collector.store.rglob(f"{SESSION}/end.json"))


def test_logs_removed_by_rotation_stay_readable(node: ShippedLogs) -> None:
    """Removed files are not subject to the limit of eight truncated versions."""
    for number in range(30):
        node.append("raylet.out", f"{number}\n")
        node.flush()
        for older, newer in (("raylet.2.out", "raylet.1.out"), ("raylet.1.out", "raylet.out")):
            if (node.logs / newer).exists():
                (node.logs / newer).rename(node.logs / older)
        node.flush()
    assert sorted(map(int, node.stored().values())) == list(range(30))
    assert node.series.tailer.lost_bytes == 0


def post(collector: CollectorUnderTest, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=20)
    try:
        connection.request("POST", "/v1/events", body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_events_are_stored_while_session_latest_points_to_an_older_session() -> None:
    with CollectorUnderTest("--role=Head", "--event-rotation-interval=200ms", "--log-interval=200ms") as collector:
        collector.begin_session(OLDER_SESSION)
        collector.end_ray()
        shutil.rmtree(collector.home / SESSION)
        collector.start()
        for session in (SESSION, SESSION.replace("19-18", "20-18")):  # Ray may restart
            batch = [event(session, random.Random(1)) | {"sessionName": session}]
            assert post(collector, json.dumps(batch).encode()) == 200
            collector.wait_until(lambda session=session: list(collector.store.rglob(f"{session}/**/*.jsonl.gz")))
            collector.wait_until(lambda session=session: list(collector.store.rglob(f"{session}/start.json")))


def wait_for_session(store: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(store.rglob("start.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("disk", ["2m"], indirect=True)
def test_full_disk_at_shutdown_does_not_prevent_seal_and_end_record(disk: Path, tmp_path: Path) -> None:
    """The last POST is quarantined, but its count cannot be written to the ledger."""
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

    async def run() -> None:
        collector = Collector(settings, "test", LocalStore(tmp_path))
        with socket.socket(socket.AF_UNIX) as raylet:
            raylet.bind(str(directory / "sockets" / "raylet"))
            raylet.listen()
            await collector.start()
            await asyncio.to_thread(wait_for_session, tmp_path)
        await asyncio.to_thread(fill_disk, disk / "filler")

        async def last_post() -> None:
            transport = httpx.ASGITransport(collector.app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                assert (await client.post("/v1/events", content=b"not JSON")).status_code == 200

        await collector.shut_down(last_post)

    asyncio.run(run())
    assert list(tmp_path.rglob(f"{SESSION}/end.json"))
    (seal,) = tmp_path.rglob(f"seals/**/{NODE}.json")
    assert json.loads(seal.read_bytes())["set_aside"] == 1


@pytest.mark.parametrize("disk", ["1m"], indirect=True)
def test_spool_that_fills_its_disk_is_drained_after_a_store_outage(disk: Path) -> None:
    """There is no free space for upload files beside the spool."""
    with CollectorUnderTest(spool=disk / "spool", FAULT_STORE="1.0") as collector:
        collector.start()
        with Sender(collector.port, 5, max_batch=400) as sender:
            collector.wait_until(lambda: sender.statuses.get(503, 0) > 5)
        collector.recover()
        assert post(collector, json.dumps([event("last", random.Random(1))]).encode()) == 200
        assert collector.end() == 0
        state = read_state(collector.store, sender.acked | {"last"})
        assert not state.missing
        assert not state.duplicates


def test_batch_larger_than_the_spool_is_quarantined() -> None:
    """Ray would resend a refused batch forever, and nothing after it."""
    with CollectorUnderTest("--event-max-disk-mb=1") as collector:
        collector.start()
        batch = [event(str(number), random.Random(number)) for number in range(4000)]
        assert post(collector, json.dumps(batch).encode()) == 200
        assert 'quarantined_total{reason="too_large"} 1.0' in collector.get("/metrics")[1]
        assert post(collector, json.dumps(batch[:100]).encode()) == 200
        assert collector.end() == 0
        state = read_state(collector.store, {each["eventId"] for each in batch[:100]})
        assert not state.missing
