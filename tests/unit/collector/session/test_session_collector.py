"""A Ray that may not be asked whether it is there, and nodes that nobody names: they are kept all the same."""

import asyncio
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_collector_process import NODE, SESSION, FakeRay
from test_collector_snapshots import serving

from rayhistory.collector.block import Block
from rayhistory.collector.discovery import look, nameless
from rayhistory.collector.service import Collector
from rayhistory.layout.keys import is_node_folder
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage.local import LocalStore

EVENT = Block("node_events", 1, b"{}\n")


def collector_in(home: Path, **options: Any) -> Collector:
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


async def nothing() -> None:
    pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


def test_a_raylet_that_may_not_be_asked_is_kept_all_the_same(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its logs grow: that is enough, and is said once. When they do not any more, the session is over."""
    ray = FakeRay(home / "short")
    ray.begin()
    root = (home / "short").rename(home / ("a-path-too-long-for-a-socket-" * 4))
    (root / "session_latest").unlink()
    (root / "session_latest").symlink_to(SESSION)

    async def day() -> None:
        collector = collector_in(home, ray_tmp_root=str(root))
        await collector._shared.spool.open()
        for _ in range(2):
            await collector._notice(await asyncio.to_thread(look, root))
        assert collector._keeper
        assert collector._keeper.ref.session == SESSION
        assert not await collector._is_over(SESSION)
        for path in (root / SESSION / "logs").iterdir():
            os.utime(path, (1000, 1000))
        assert await collector._is_over(SESSION)
        await collector.end(nothing)

    asyncio.run(day())
    ray.end()
    assert list((home / "store").rglob("raylet.out"))
    assert len([each for each in caplog.records if "raylet cannot be asked" in each.message]) == 1


def test_events_leave_the_node_though_nobody_names_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files nor events tell its id: of the session that is kept, and of one that somebody invented. What is
    learned later counts from then on."""
    for place in ("keeper.NOBODY_NAMES", "service.NOBODY_NAMES", "keeper._NOBODY_TELLS"):
        monkeypatch.setattr(f"rayhistory.collector.{place}", 0.1)
    ray = FakeRay(home)
    port_file = ray.begin() / f"metrics_export_port_{NODE}"
    port_file.unlink()
    other, made_up = f"{SESSION}-other", nameless(home)
    stored = (home / "store").rglob

    async def day() -> None:
        collector = collector_in(home, log_interval=0.2)
        await collector.start()
        await collector._shared.spool.append({SESSION: [EVENT], other: [EVENT]})
        await until(lambda: any(made_up in str(path) for path in stored("*.pack")))
        await until(lambda: any(made_up in str(path) and other in str(path) for path in stored("*.jsonl.gz")))
        port_file.write_text("1")
        await until(lambda: collector._keeper is not None and collector._keeper.node == NODE)
        ray.end()
        await collector.end(nothing)

    asyncio.run(day())
    assert is_node_folder(made_up)
    assert any(made_up in str(path) and other not in str(path) for path in stored("*.jsonl.gz"))
    assert json.loads(next(stored("start.json")).read_text())["node_id"] == NODE


def test_the_head_is_asked_for_the_pods_node_when_nothing_else_tells(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pod's address, as in KubeRay; once, and not at all by those who know."""
    for place in ("keeper.NOBODY_NAMES", "keeper._NOBODY_TELLS"):
        monkeypatch.setattr(f"rayhistory.collector.{place}", 0.1)
    question = "/api/v0/nodes?limit=10000&filter_keys=node_ip&filter_predicates=%3D&filter_values=10.1.2.3"
    nodes = [
        {"node_id": "ab" * 28, "node_ip": "10.1.2.3", "state": "DEAD"},
        {"node_id": "cd" * 28, "node_ip": "10.1.2.4", "state": "ALIVE"},
        {"node_id": NODE, "node_ip": "10.1.2.3", "state": "ALIVE"},
    ]
    ray = FakeRay(home)
    (ray.begin() / f"metrics_export_port_{NODE}").unlink()

    async def day(address: str) -> None:
        collector = collector_in(home, role="Worker", pod_ip="10.1.2.3", fq_ray_ip=address)
        await collector.start()
        await until(lambda: collector._keeper is not None and collector._keeper.node is not None)
        assert collector._keeper
        assert collector._keeper.node == NODE
        ray.end()
        await collector.end(nothing)

    with serving() as head:
        head.answers[question] = {"data": {"result": {"result": nodes}}}
        asyncio.run(day(head.url))
    assert head.asked == [question]
