"""Races inside the collector that separate processes would hit only by chance."""

import asyncio
import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayhistory.collector.service import Collector
from rayhistory.collector.session.ray_discovery import find_latest_session
from rayhistory.collector.spool.block import Block
from rayhistory.collector.spool.spool import SpoolError
from rayhistory.settings import COLLECTOR, Settings, resolve
from rayhistory.storage.local import LocalStore
from support.collector_process import NODE, SESSION, FakeRay


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, because the paths of Unix sockets are limited."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


def settings_for(home: Path) -> Settings:
    return dataclasses.replace(
        resolve(COLLECTOR, {}, {"LOCAL_STORAGE_DIR": str(home / "store")})[0],
        role="Head",
        ray_tmp_root=str(home),
        event_data_dir=str(home / "spool"),
        ray_dashboard_address="http://127.0.0.1:9",
        metrics_interval=0.0,
    )


async def do_nothing() -> None:
    pass


class StallingStore(LocalStore):
    """A real store whose uploads of whole log files never finish."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.stalled: asyncio.Event | None = asyncio.Event()

    async def put(self, key: str, data: bytes | Path) -> None:
        if self.stalled and key.endswith("/raylet.out"):
            self.stalled.set()
            await asyncio.sleep(3600)
        await super().put(key, data)


def test_log_files_not_copied_in_time_are_in_the_seal_and_copied_by_the_next_process(home: Path) -> None:
    """The session was marked as finished although only its packs were stored, not its whole log files."""
    ray = FakeRay(home)
    log = ray.start() / "logs" / "raylet.out"
    os.utime(log, (time.time() - 3600, time.time() - 3600))

    async def scenario() -> None:
        store = StallingStore(home / "store")
        collector = Collector(settings_for(home), "test", store)
        await collector._context.spool.open()
        await collector._update_session(await asyncio.to_thread(find_latest_session, home))
        ray.stop()
        shutdown = asyncio.create_task(collector.shut_down(do_nothing))
        assert store.stalled
        await asyncio.wait_for(store.stalled.wait(), 30)
        collector._give_up.set()
        await asyncio.wait_for(shutdown, 30)
        (seal,) = (home / "store").rglob(f"{SESSION}/{NODE}.json")
        assert json.loads(seal.read_bytes())["left_behind"] == ["logs/raylet.out"]
        store.stalled = None
        await Collector(settings_for(home), "test", store)._orphans.ship_all()

    asyncio.run(scenario())
    (copy,) = (home / "store").rglob("raylet.out")
    assert copy.read_text() == log.read_text()


def test_session_found_by_two_tasks_at_once_is_collected_once(home: Path) -> None:
    """SIGTERM arrived just when Ray was found: one session collector closed what the other had just started."""
    ray = FakeRay(home)
    ray.start()
    settings = settings_for(home)

    async def scenario() -> None:
        collector = Collector(settings, "test", LocalStore(home / "store"))
        await collector._context.spool.open()
        latest = await asyncio.to_thread(find_latest_session, home)
        await asyncio.gather(collector._update_session(latest), collector._update_session(latest, at_shutdown=True))
        assert collector._current
        assert collector._current.ref.session == SESSION
        assert not collector._closing
        ray.stop()
        await collector.shut_down(do_nothing)

    asyncio.run(scenario())
    assert list((home / "store").rglob(f"{SESSION}/end.json"))


LATER_SESSION = "session_2026-11-15_19-18-09_055078_15552"


def test_events_of_a_session_that_ends_right_after_the_start_are_not_quarantined(home: Path) -> None:
    """The port was open before the first look at Ray: a session that ended in between was never known."""
    ray = FakeRay(home)
    ray.start()

    async def scenario() -> None:
        collector = Collector(settings_for(home), "test", LocalStore(home / "store"))
        await collector.start()
        ray.stop()
        ray.start(LATER_SESSION)
        while not collector._current or collector._current.ref.session != LATER_SESSION:
            await collector._update_session(await asyncio.to_thread(find_latest_session, home))
        assert await collector._admits(SESSION)
        ray.stop()
        await collector.shut_down(do_nothing)

    asyncio.run(scenario())


def test_events_are_refused_and_not_quarantined_while_the_spool_cannot_be_opened(home: Path) -> None:
    """Only the spool tells which sessions were collected here. Ray resends what is refused."""
    ray = FakeRay(home)
    ray.start(LATER_SESSION)
    settings = dataclasses.replace(settings_for(home), event_data_dir=str(home / "disk" / "spool"))

    async def first() -> None:
        collector = Collector(settings, "test", LocalStore(home / "store"))
        await collector._context.spool.open()
        await collector._context.spool.append({SESSION: [Block("node_events", 1, b"{}\n")]})
        await collector._context.spool.close()

    async def second() -> None:
        (home / "disk").rename(home / "unplugged")
        (home / "disk").touch()
        collector = Collector(settings, "test", LocalStore(home / "store"))
        await collector.start()
        with pytest.raises(SpoolError):
            await collector._admits(SESSION)
        (home / "disk").unlink()
        (home / "unplugged").rename(home / "disk")
        assert await collector._admits(SESSION)
        ray.stop()
        await collector.shut_down(do_nothing)

    asyncio.run(first())
    asyncio.run(second())
