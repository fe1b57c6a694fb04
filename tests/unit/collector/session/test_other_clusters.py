"""A collector with another cluster name leaves alone the ended sessions of the earlier cluster."""

import asyncio
import dataclasses
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayhistory.collector.service import Collector
from rayhistory.collector.session.ray_discovery import find_latest_session
from rayhistory.errors import StoreDenied
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import COLLECTOR, Settings, resolve
from rayhistory.storage.local import LocalStore
from support.collector_process import NODE, SESSION, FakeRay


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, because the paths of Unix sockets are limited."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


def settings_for(home: Path, spool: str = "spool") -> Settings:
    return dataclasses.replace(
        resolve(COLLECTOR, {}, {})[0],
        role="Head",
        ray_tmp_root=str(home),
        event_data_dir=str(home / spool),
        ray_dashboard_address="http://127.0.0.1:9",
        metrics_interval=0.0,
    )


def make_old(directory: Path) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (time.time() - 3600, time.time() - 3600), follow_symlinks=False)


async def do_nothing() -> None:
    pass


async def collect(home: Path, store: LocalStore, cluster: str, *, is_killed: bool = False) -> None:
    """Collect a session to its end with a collector of this cluster, or kill that before the end."""
    ray = FakeRay(home)
    ray.start()
    collector = Collector(settings_for(home), cluster, store)
    await collector._context.spool.open()
    await collector._update_session(await asyncio.to_thread(find_latest_session, home))
    layout = Layout()
    while not await has_start(store, layout, cluster):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    ray.stop()
    if is_killed:
        assert collector._current
        for task in (*collector._current._tasks, collector._current._shipping, collector._current._heartbeat):
            if task:
                task.cancel()
        await collector._context.spool.close()
    else:
        await collector.shut_down(do_nothing)
    make_old(home / SESSION)


async def has_start(store: LocalStore, layout: Layout, cluster: str) -> bool:
    key = layout.start_key(SessionRef("default", cluster, SESSION))
    return [info.key async for info in store.list_all(key.rpartition("/")[0]) if info.key == key] != []


async def start_second(home: Path, store: LocalStore, cluster: str, spool: str = "spool") -> None:
    collector = Collector(settings_for(home, spool), cluster, store)
    await collector._context.spool.open()
    await collector._orphans.ship_all()
    await collector._orphans.ship_all()
    await collector.shut_down(do_nothing)


def remove_logs(home: Path) -> None:
    for name in ("logs", "packs"):
        for path in home.glob(f"store/**/{name}"):
            shutil.rmtree(path)


def clusters(home: Path) -> set[str]:
    """All clusters that have any object in the store."""

    async def listed() -> set[str]:
        catalog = SessionCatalog(LocalStore(home / "store"), Layout(), vanished_after=120)
        return {entry.ref.cluster for entry in await catalog.entries()}

    return asyncio.run(listed())


@pytest.mark.parametrize("spool", ["spool", "other-spool"])
def test_ended_session_of_another_cluster_is_not_uploaded_again(
    home: Path, caplog: pytest.LogCaptureFixture, spool: str
) -> None:
    """The earlier collector's spool names it; with a spool elsewhere, the store does."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        store = LocalStore(home / "store")
        await collect(home, store, "first")
        await start_second(home, store, "second", spool)

    asyncio.run(scenario())
    assert clusters(home) == {"first"}
    (record,) = [record for record in caplog.records if "another cluster has" in record.message]
    assert (record.__dict__["session"], record.__dict__["cluster"]) == (SESSION, "default/first")


@pytest.mark.parametrize("spool", ["spool", "other-spool"])
def test_incomplete_session_of_another_cluster_is_named_in_the_log(
    home: Path, caplog: pytest.LogCaptureFixture, spool: str
) -> None:
    """Its collector was killed. The log says how to upload the rest, and then that works."""

    async def scenario() -> None:
        store = LocalStore(home / "store")
        await collect(home, store, "first", is_killed=True)
        await start_second(home, store, "second", spool)

    asyncio.run(scenario())
    assert clusters(home) == {"first"}
    (record,) = [record for record in caplog.records if "another cluster has" in record.message]
    assert record.levelname == "WARNING"
    assert "not completely uploaded" in record.message
    asyncio.run(start_second(home, LocalStore(home / "store"), "first"))
    assert [path.read_text() for path in home.glob(f"store/**/{NODE}/logs/raylet.out")] == ["hello from the raylet\n"]


def test_session_that_no_cluster_recorded_is_uploaded(home: Path) -> None:
    """Beside a spool with other sessions, and a spool that cannot be read."""

    async def scenario() -> None:
        store = LocalStore(home / "store")
        await collect(home, store, "first")
        (home / SESSION).rename(home / f"{SESSION}9")
        (home / "spool" / "broken_default").mkdir()
        (home / "spool" / "broken_default" / "counts.json").write_text("[")
        await start_second(home, store, "second")

    asyncio.run(scenario())
    assert clusters(home) == {"first", "second"}


def test_session_is_continued_in_its_own_cluster_by_a_new_spool(home: Path) -> None:
    """Although another cluster has it, too: the store has both."""

    async def scenario() -> None:
        store = LocalStore(home / "store")
        await collect(home, store, "first")
        remove_logs(home)
        start = home / "store" / Layout().start_key(SessionRef("default", "first", SESSION))
        copy = home / "store" / Layout().start_key(SessionRef("default", "copy", SESSION))
        copy.parent.mkdir(parents=True)
        copy.write_bytes(start.read_bytes())
        await start_second(home, store, "first", "other-spool")

    asyncio.run(scenario())
    assert [path.read_text() for path in home.glob(f"store/**/{NODE}/logs/raylet.out")] == ["hello from the raylet\n"]


class DeniedStore(LocalStore):
    """A store whose credentials cannot list the keys of other clusters."""

    def list_all(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
        if prefix.endswith("/sessions/default"):
            raise StoreDenied("denied")
        return super().list_all(prefix, start_after)


def test_session_is_uploaded_if_other_clusters_cannot_be_listed(home: Path) -> None:
    async def scenario() -> None:
        await collect(home, LocalStore(home / "store"), "first")
        await start_second(home, DeniedStore(home / "store"), "second", "other-spool")

    asyncio.run(scenario())
    assert clusters(home) == {"first", "second"}


class CountingStore(LocalStore):
    """A store that counts listings of the records of all clusters."""

    listings = 0

    def list_all(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
        self.listings += prefix.endswith("/sessions/default")
        return super().list_all(prefix, start_after)


def test_clusters_of_many_sessions_are_found_with_one_listing(home: Path) -> None:
    """A job can create directories of ended sessions, and each of them caused a listing of the namespace."""
    for number in range(20):
        logs = home / f"{SESSION}{number}" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text("hello\n")
    make_old(home)
    store = CountingStore(home / "store")
    asyncio.run(start_second(home, store, "second"))
    assert len(list(home.glob("store/ray-history/logs/default/second/*"))) == 20
    assert store.listings == 1
