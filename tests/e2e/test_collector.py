"""A collector beside a real Ray cluster: all data is in the store after both have ended."""

import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rayhistory.cli.local_ray.local_ray import LocalRay

JOB = """
import ray, time
ray.init()

@ray.remote
def square(n):
    print("squaring", n)
    return n * n

@ray.remote
class Adder:
    def add(self, a, b):
        return a + b

print("sum", sum(ray.get([square.remote(n) for n in range(5)])))
print("three", ray.get(Adder.remote().add.remote(1, 2)))
time.sleep(2)
"""

MAIN_TYPES = {
    "TASK_DEFINITION_EVENT",
    "TASK_LIFECYCLE_EVENT",
    "TASK_PROFILE_EVENT",
    "ACTOR_DEFINITION_EVENT",
    "ACTOR_LIFECYCLE_EVENT",
    "ACTOR_TASK_DEFINITION_EVENT",
    "DRIVER_JOB_DEFINITION_EVENT",
    "DRIVER_JOB_LIFECYCLE_EVENT",
    "NODE_DEFINITION_EVENT",
    "NODE_LIFECYCLE_EVENT",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_collector(ray: LocalRay, port: int, home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "rayhistory.collector.main", "--role", "Head", "--events-host", "127.0.0.1"),
            *("--events-port", str(port), "--ray-cluster-name", "test", "--event-data-dir", str(home / "spool")),
        ],
        env={
            **os.environ,
            "RAY_TMP_ROOT": str(ray.temp_dir),
            "STORAGE_BACKEND": "local",
            "LOCAL_STORAGE_DIR": str(home / "store"),
        },
    )


async def record(home: Path) -> tuple[str, str]:
    """Run a job, end Ray and the collector, and return the names of session and submission."""
    port = free_port()
    ray = LocalRay(events_url=f"http://127.0.0.1:{port}/v1/events", num_cpus=2)
    collector = start_collector(ray, port, home)
    try:
        async with ray:
            await ray.ready()
            script = home / "job.py"
            script.write_text(JOB)
            submission = await ray.submit([sys.executable, str(script)])
            assert (await ray.wait(submission))["status"] == "SUCCEEDED"
            collector.send_signal(signal.SIGTERM)
            await asyncio.sleep(1)
            await ray.stop()
            assert await asyncio.to_thread(collector.wait, 30) == 0
            return ray.session_name, submission
    finally:
        collector.kill()
        collector.wait()


async def outlive_ray(home: Path) -> tuple[Path, float, float]:
    """Run Ray until the collector has found it, then end Ray; return the records and when Ray began and had ended."""
    port = free_port()
    ray = LocalRay(events_url=f"http://127.0.0.1:{port}/v1/events", num_cpus=1)
    collector = start_collector(ray, port, home)
    try:
        async with ray:
            await ray.ready()
            records = home / "store/ray-history/sessions/default/test" / ray.session_name
            await wait_for(records / "alive")
            began = time.time()
            await ray.stop()
            ended = time.time()
            await wait_for(records / "end.json")
            assert collector.poll() is None
        return records, began, ended
    finally:
        collector.kill()
        collector.wait()


async def wait_for(path: Path) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_session_ends_with_ray_while_the_collector_lives(tmp_path: Path) -> None:
    """As after `ray stop`: the end is Ray's last sign of life, and not when the collector noticed."""
    records, began, ended = asyncio.run(outlive_ray(tmp_path))
    end = json.loads((records / "end.json").read_text())
    assert end["reason"] == "Ray has exited"
    assert began <= end["ended_ms"] / 1000 <= ended


def lines(paths: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_real_session_is_complete_in_the_store(tmp_path: Path) -> None:
    """The collector starts before Ray and gets SIGTERM with it: records, events, logs and dashboard responses."""
    session, submission = asyncio.run(record(tmp_path))
    store = tmp_path / "store"
    assert (store / "cluster-metadata/raycluster/default_test" / session).read_bytes() == b""

    records = store / "ray-history/sessions/default/test" / session
    start, end = (json.loads((records / name).read_text()) for name in ("start.json", "end.json"))
    assert start["ray_version"].startswith("2.")
    assert start["started_ms"] < end["ended_ms"]
    assert not (records / "alive").exists()

    history = store / "cluster-history/raycluster/default/test" / session
    (node,) = [path.name for path in history.iterdir() if path.name != "fetched_endpoints"]
    assert node == start["node_id"]
    events = lines([*history.glob("*/node_events/*.gz"), *history.glob("*/job_events/*/*.gz")])
    types = Counter(event["eventType"] for event in events)
    assert set(types) >= MAIN_TYPES
    seal = json.loads((store / f"ray-history/seals/default/test/{session}/{node}.json").read_text())
    assert seal["received"] == seal["stored"] == len(events)
    # Ray's dashboard may outlive the raylet by a moment, and write to its log after the last upload.
    assert set(seal.get("left_behind", ())) <= {"logs/dashboard.log"}

    logs = history / node / "logs"
    assert "sum 30" in (logs / f"job-driver-{submission}.log").read_text()
    assert (logs / "raylet.out").stat().st_size > 0
    assert any("squaring" in path.read_text() for path in logs.glob("worker-*.out"))

    assert {path.name for path in (history / "fetched_endpoints").iterdir()} >= {
        "restful__api__v0__cluster_metadata",
        "restful__timezone",
        "restful__api__v0__placement_groups?detail=1&limit=10000",
    }
    responses = [
        each["dashboardSnapshot"]
        for each in lines(list((store / "ray-history/snapshots/default/test" / session).glob("*.gz")))
        if each["eventType"] == "DASHBOARD_SNAPSHOT"
    ]
    jobs = [job for each in responses if each["uri"] == "/api/jobs/" for job in each["body"]]
    assert [job["status"] for job in jobs if job["submission_id"] == submission][-1] == "SUCCEEDED"
    assert {each["uri"] for each in responses} >= {
        "/api/version",
        "/nodes?view=summary",
        f"/nodes/{node}",
        "/logical/actors",
    }
    actors = [each["body"]["data"]["actors"] for each in responses if each["uri"] == "/logical/actors"][-1]
    assert "Adder" in {actor["className"] for actor in actors.values()}
