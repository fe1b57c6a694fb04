"""The collector's own decisions, where processes would have to be lucky to meet."""

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
from test_collector_process import NODE, SESSION, FakeRay

from rayhistory.collector.discovery import look
from rayhistory.collector.service import Collector
from rayhistory.settings import COLLECTOR, Settings, resolve
from rayhistory.storage.local import LocalStore


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: Ray's sockets are below it."""
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


class Stalling(LocalStore):
    """A real store that takes all but whole log files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.stalled: asyncio.Event | None = asyncio.Event()

    async def put(self, key: str, data: bytes | Path) -> None:
        if self.stalled and key.endswith("/raylet.out"):
            self.stalled.set()
            await asyncio.sleep(3600)
        await super().put(key, data)


def test_whole_files_that_had_no_time_are_told_and_written_by_the_next(home: Path) -> None:
    """Everything was in packs, so the session was marked as one of which nothing is left."""
    ray = FakeRay(home)
    log = ray.begin() / "logs" / "raylet.out"
    os.utime(log, (time.time() - 3600, time.time() - 3600))

    async def nothing() -> None:
        pass

    async def day() -> None:
        store = Stalling(home / "store")
        collector = Collector(settings_for(home), "test", store)
        await collector._shared.spool.open()
        await collector._notice(await asyncio.to_thread(look, home))
        ray.end()
        end = asyncio.create_task(collector.end(nothing))
        assert store.stalled
        await asyncio.wait_for(store.stalled.wait(), 30)
        collector._give_up.set()
        await asyncio.wait_for(end, 30)
        (seal,) = (home / "store").rglob(f"{SESSION}/{NODE}.json")
        assert json.loads(seal.read_bytes())["left_behind"] == ["logs/raylet.out"]
        store.stalled = None
        await Collector(settings_for(home), "test", store)._leftovers.ship_all()

    asyncio.run(day())
    (whole,) = (home / "store").rglob("raylet.out")
    assert whole.read_text() == log.read_text()


def test_a_session_that_is_noticed_twice_at_once_is_kept_once(home: Path) -> None:
    """SIGTERM comes in the moment in which Ray is first seen: one keeper closed what the other had just begun."""
    ray = FakeRay(home)
    ray.begin()
    settings = settings_for(home)

    async def day() -> None:
        collector = Collector(settings, "test", LocalStore(home / "store"))
        await collector._shared.spool.open()
        sighting = await asyncio.to_thread(look, home)
        await asyncio.gather(collector._notice(sighting), collector._notice(sighting, last=True))
        assert collector._keeper
        assert collector._keeper.ref.session == SESSION
        assert not collector._closing
        ray.end()

        async def nothing() -> None:
            pass

        await collector.end(nothing)

    asyncio.run(day())
    assert list((home / "store").rglob(f"{SESSION}/end.json"))
