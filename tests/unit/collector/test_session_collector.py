"""Sessions are collected even if their raylet cannot be probed or their node id is not found."""

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayhistory.collector import session_collector
from rayhistory.collector.service import Collector
from rayhistory.collector.session import node_id
from rayhistory.collector.session.node_id import placeholder_node_id
from rayhistory.collector.session.ray_discovery import find_latest_session
from rayhistory.collector.spool.block import Block
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage.local import LocalStore
from support.collector_process import NODE, SESSION, FakeRay
from support.dashboard_double import run_dashboard

EVENT = Block("node_events", 1, b"{}\n")


def make_collector(home: Path, **options: Any) -> Collector:
    settings = dataclasses.replace(
        resolve(COLLECTOR, {}, {"LOCAL_STORAGE_DIR": str(home / "store")})[0],
        **{
            "role": "Head",
            "ray_tmp_root": str(home),
            "event_data_dir": str(home / "spool"),
            "ray_dashboard_address": "http://127.0.0.1:9",
            "metrics_interval": 0.0,
            "grace_period": 12.0,
            **options,
        },
    )
    return Collector(settings, "test", LocalStore(home / "store"))


async def stop_listening() -> None:
    pass


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, because Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout in ("_PLACEHOLDER_AFTER_S", "_PLACEHOLDER_WITHOUT_FILES_AFTER_S"):
        monkeypatch.setattr(node_id, timeout, 0.1)


def test_session_is_collected_if_its_raylet_socket_cannot_be_probed(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The session has ended when its logs stop growing. The failure is logged once."""
    root = home / "ray"
    ray = FakeRay(root)
    raylet = ray.start() / "sockets" / "raylet"
    raylet.unlink()
    raylet.symlink_to("raylet")

    async def run() -> None:
        collector = make_collector(home, ray_tmp_root=str(root))
        await collector._context.spool.open()
        for _ in range(2):
            await collector._update_session(await asyncio.to_thread(find_latest_session, root))
        assert collector._current
        assert collector._current.ref.session == SESSION
        assert not await collector._has_ended(SESSION)
        for path in (root / SESSION / "logs").iterdir():
            os.utime(path, (1000, 1000))
        assert await collector._has_ended(SESSION)
        await collector.shut_down(stop_listening)

    asyncio.run(run())
    ray.stop()
    assert list((home / "store").rglob("raylet.out"))
    assert len([each for each in caplog.records if "cannot connect to the raylet socket" in each.message]) == 1


def test_session_goes_on_while_its_gcs_answers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's raylet may be gone while the cluster lives."""
    monkeypatch.setattr(session_collector, "_GONE_AFTER_S", 0.0)
    ray = FakeRay(home)
    directory = ray.start()

    async def run() -> None:
        collector = make_collector(home)
        await collector._context.spool.open()
        await collector._update_session(await asyncio.to_thread(find_latest_session, home))
        current = collector._current
        assert current
        assert not await current.is_ray_gone()
        with socket.create_server(("127.0.0.1", 0)) as gcs:
            (directory / f"gcs_server_port_{NODE}").write_text(str(gcs.getsockname()[1]))
            ray.stop()
            assert not await current.is_ray_gone()
        assert await current.is_ray_gone()
        await collector.shut_down(stop_listening)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("short_timeouts")
def test_events_are_stored_under_a_placeholder_until_the_node_id_is_found(home: Path) -> None:
    """Of the collected session, and of one that is known only from its events."""
    ray = FakeRay(home)
    port_file = ray.start() / f"metrics_export_port_{NODE}"
    port_file.unlink()
    other, placeholder = f"{SESSION}-other", placeholder_node_id(home)
    find_stored = (home / "store").rglob

    async def run() -> None:
        collector = make_collector(home, log_interval=0.2)
        await collector.start()
        await collector._context.spool.append({SESSION: [EVENT], other: [EVENT]})
        await wait_until(lambda: any(placeholder in str(path) for path in find_stored("*.pack")))
        await wait_until(
            lambda: any(placeholder in str(path) and other in str(path) for path in find_stored("*.jsonl.gz"))
        )
        port_file.write_text("1")
        await wait_until(lambda: collector._current is not None and collector._current.node == NODE)
        ray.stop()
        await collector.shut_down(stop_listening)

    asyncio.run(run())
    assert any(placeholder in str(path) and other not in str(path) for path in find_stored("*.jsonl.gz"))
    assert json.loads(next(find_stored("start.json")).read_text())["node_id"] == NODE


@pytest.mark.usefixtures("short_timeouts")
def test_head_is_asked_once_for_the_node_with_the_pods_ip(home: Path) -> None:
    """Only if nothing else tells the node id, as KubeRay's collector does."""
    uri = "/api/v0/nodes?limit=10000&filter_keys=node_ip&filter_predicates=%3D&filter_values=10.1.2.3"
    nodes = [
        {"node_id": "ab" * 28, "node_ip": "10.1.2.3", "state": "DEAD"},
        {"node_id": "cd" * 28, "node_ip": "10.1.2.4", "state": "ALIVE"},
        {"node_id": NODE, "node_ip": "10.1.2.3", "state": "ALIVE"},
    ]
    ray = FakeRay(home)
    (ray.start() / f"metrics_export_port_{NODE}").unlink()

    async def run(address: str) -> None:
        collector = make_collector(home, role="Worker", pod_ip="10.1.2.3", fq_ray_ip=address)
        await collector.start()
        await wait_until(lambda: collector._current is not None and collector._current.node is not None)
        assert collector._current
        assert collector._current.node == NODE
        ray.stop()
        await collector.shut_down(stop_listening)

    with run_dashboard() as head:
        head.responses[uri] = {"data": {"result": {"result": nodes}}}
        asyncio.run(run(head.url))
    assert head.requests == [uri]
