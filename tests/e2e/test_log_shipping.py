"""Logs of a node that is killed: lines written some seconds earlier are in the store, once."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayhistory.cli.local_ray.local_ray import LocalRay
from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory with a short path, because Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(home: Path, root: Path, *flags: str, port: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "rayhistory.collector.main", "--events-host=127.0.0.1", f"--events-port={port}"),
            *(f"--event-data-dir={home / 'spool'}", "--ray-cluster-name=test", "--log-interval=200ms", *flags),
        ],
        env={
            **os.environ,
            "STORAGE_BACKEND": "local",
            "LOCAL_STORAGE_DIR": str(home / "store"),
            "RAY_TMP_ROOT": str(root),
            "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9",
        },
        stderr=(home / "collector.log").open("ab"),
    )


def stored_logs(home: Path, session: str = SESSION) -> dict[str, bytes]:
    """Read all log files of all nodes from the store."""

    async def read() -> dict[str, bytes]:
        store, layout, ref = LocalStore(home / "store"), Layout(), SessionRef("default", "test", session)
        logs = CombinedLogs(*object_logs(store, layout, ref), PackLogs(store, layout, ref))
        return {
            file.path: await logs.read(node, file.path, 0, file.size)
            for node in await logs.nodes()
            for file in await logs.files(node)
        }

    return asyncio.run(read())


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


def test_killed_collectors_lose_and_repeat_no_line(home: Path) -> None:
    """The log grows and is rotated while collectors are killed and restarted."""
    logs = home / "ray" / SESSION / "logs"
    (logs.parent / "sockets").mkdir(parents=True)
    logs.mkdir()
    (logs.parent / f"metrics_export_port_{NODE}").write_text("1")
    (home / "ray" / "session_latest").symlink_to(logs.parent)
    lines = 0
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(logs.parent / "sockets" / "raylet"))
        raylet.listen()
        for round_ in range(8):
            collector = start(home, home / "ray")
            deadline = time.monotonic() + 1.5 + 0.1 * round_
            while time.monotonic() < deadline:
                with (logs / "raylet.out").open("a") as file:
                    for _ in range(50):
                        lines += 1
                        file.write(f"line {lines}\n")
                if lines % 2000 == 0:
                    for number in range(30, 0, -1):
                        newer = logs / (f"raylet.{number - 1}.out" if number > 1 else "raylet.out")
                        if newer.exists():
                            newer.rename(logs / f"raylet.{number}.out")
                time.sleep(0.01)
            collector.kill()
            collector.wait()
        collector = start(home, home / "ray", "--log-layout=packs")
        eventually(lambda: sum(content.count(b"\n") for content in stored_logs(home).values()) >= lines)
        collector.kill()
        collector.wait()
    numbers = [
        int(number) for content in stored_logs(home).values() for number in re.findall(rb"line (\d+)\n", content)
    ]
    assert sorted(numbers) == list(range(1, lines + 1))


JOB = """
import ray, time
ray.init()

@ray.remote
def work(n):
    print("working on", n)
    return n

for n in range(1000):
    ray.get(work.remote(n))
    print("finished", n, flush=True)
    time.sleep(0.5)
"""


def test_logs_of_a_killed_node_are_in_the_store(home: Path) -> None:
    """A real Ray and its collector are killed together: output of ten seconds earlier is stored."""

    async def run() -> tuple[str, str, int]:
        port = free_port()
        ray = LocalRay(events_url=f"http://127.0.0.1:{port}/v1/events", num_cpus=2)
        collector = start(home, ray.temp_dir, "--role=Head", port=port)
        try:
            async with ray:
                await ray.ready()
                script = home / "job.py"
                script.write_text(JOB)
                submission = await ray.submit([sys.executable, str(script)])
                driver = ray.session_dir / "logs" / f"job-driver-{submission}.log"
                async with asyncio.timeout(90):
                    while not driver.exists() or "finished 3" not in driver.read_text():  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
                written = driver.stat().st_size
                await asyncio.sleep(10)
                collector.send_signal(signal.SIGKILL)
                return ray.session_name, submission, written
        finally:
            collector.kill()
            collector.wait()

    session, submission, written = asyncio.run(run())
    found = stored_logs(home, session)
    assert len(found[f"job-driver-{submission}.log"]) >= written
    assert b"finished 3" in found[f"job-driver-{submission}.log"]
    assert any(b"working on 3" in content for name, content in found.items() if name.startswith("worker-"))
    assert found["raylet.out"]
    assert not list((home / "store").glob("cluster-history/**/logs/*"))
