"""The collector's own decisions, where processes would have to be lucky to meet."""

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_collector_process import SESSION, FakeRay

from rayhistory.collector.discovery import look
from rayhistory.collector.service import Collector
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage.local import LocalStore


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


def test_a_session_that_is_noticed_twice_at_once_is_kept_once(home: Path) -> None:
    """SIGTERM comes in the moment in which Ray is first seen: one keeper closed what the other had just begun."""
    ray = FakeRay(home)
    ray.begin()
    settings = dataclasses.replace(
        resolve(COLLECTOR, {}, {"LOCAL_STORAGE_DIR": str(home / "store")})[0],
        role="Head",
        ray_tmp_root=str(home),
        event_data_dir=str(home / "spool"),
        ray_dashboard_address="http://127.0.0.1:9",
        metrics_interval=0.0,
    )

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
