"""Collectors beside a real Ray cluster: one ends with it, one outlives it, and one is killed."""

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

import msgspec
import pytest

from rayhistory.cli.local_ray.local_ray import LocalRay
from support.stored_logs import stored_logs

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

print("three", ray.get(Adder.remote().add.remote(1, 2)))
total = 0
for n in range(10):
    total += ray.get(square.remote(n))
    print("finished", n, flush=True)
    time.sleep(0.5)
print("sum", total)
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


class Recorded(msgspec.Struct):
    """One session of Ray, and the directories of three collectors beside it."""

    session: str
    submission: str
    complete: Path
    """Of a collector that got all events, and SIGTERM before Ray ended."""
    outliving: Path
    """Of a collector that still ran after Ray had ended."""
    killed: Path
    """Of a collector that was killed ten seconds after the job had printed a line."""
    printed_bytes: int
    """The size of the job's log ten seconds before the kill."""
    stopped_s: tuple[float, float]
    """When Ray was about to be stopped, and when it had ended."""


def start_collector(ray: LocalRay, home: Path, *flags: str, port: int = 0) -> subprocess.Popen[bytes]:
    home.mkdir()
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "rayhistory.collector.main", "--role", "Head", "--events-host", "127.0.0.1"),
            *("--events-port", str(port), "--ray-cluster-name", "test", "--event-data-dir", str(home / "spool")),
            *flags,
        ],
        env={
            **os.environ,
            "RAY_TMP_ROOT": str(ray.temp_dir),
            "STORAGE_BACKEND": "local",
            "LOCAL_STORAGE_DIR": str(home / "store"),
        },
    )


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return asyncio.run(record(tmp_path_factory.mktemp("collectors")))


async def record(home: Path) -> Recorded:
    port = free_port()
    ray = LocalRay(events_url=f"http://127.0.0.1:{port}/v1/events", num_cpus=2)
    complete, outliving, killed = (home / name for name in ("complete", "outliving", "killed"))
    collectors = [
        start_collector(ray, complete, port=port),
        start_collector(ray, outliving),
        start_collector(ray, killed, "--log-interval=200ms"),
    ]
    try:
        async with ray:
            await ray.ready()
            (home / "job.py").write_text(JOB)
            submission = await ray.submit([sys.executable, str(home / "job.py")])
            printed_bytes = await _kill_after_ten_seconds(ray, submission, collectors[2])
            assert (await ray.wait(submission))["status"] == "SUCCEEDED"
            records = outliving / "store/ray-history/sessions/default/test" / ray.session_name
            await wait_for(records / "alive")
            collectors[0].send_signal(signal.SIGTERM)
            await asyncio.sleep(1)
            before = time.time()
            await ray.stop()
            stopped_s = before, time.time()
            assert await asyncio.to_thread(collectors[0].wait, 30) == 0
            await wait_for(records / "end.json")
            assert collectors[1].poll() is None
            return Recorded(ray.session_name, submission, complete, outliving, killed, printed_bytes, stopped_s)
    finally:
        for collector in collectors:
            collector.kill()
            collector.wait()


async def _kill_after_ten_seconds(ray: LocalRay, submission: str, collector: subprocess.Popen[bytes]) -> int:
    """Kill the collector ten seconds after the job has printed some lines; return the size of its log before."""
    log = ray.session_dir / "logs" / f"job-driver-{submission}.log"
    async with asyncio.timeout(90):
        while not log.exists() or "finished 3" not in log.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    written = log.stat().st_size
    await asyncio.sleep(10)
    collector.kill()
    return written


async def wait_for(path: Path) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_session_ends_with_ray_while_the_collector_lives(collected: Recorded) -> None:
    """As after `ray stop`: the end is Ray's last sign of life, and not when the collector noticed."""
    records = collected.outliving / "store/ray-history/sessions/default/test" / collected.session
    end = json.loads((records / "end.json").read_text())
    assert end["reason"] == "Ray has exited"
    before, after = collected.stopped_s
    assert before <= end["ended_ms"] / 1000 <= after


def test_logs_of_a_killed_collector_are_in_the_store(collected: Recorded) -> None:
    """As after the loss of a node: output of ten seconds earlier is stored."""
    found = stored_logs(collected.killed / "store", "test", collected.session)
    log = found[f"job-driver-{collected.submission}.log"]
    assert len(log) >= collected.printed_bytes
    assert b"finished 3" in log
    assert any(b"squaring 3" in content for name, content in found.items() if name.startswith("worker-"))
    assert found["raylet.out"]
    assert not list((collected.killed / "store").glob("cluster-history/**/logs/*"))


def lines(paths: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_real_session_is_complete_in_the_store(collected: Recorded) -> None:
    """The collector starts before Ray and gets SIGTERM with it: records, events, logs and dashboard responses."""
    session, submission, store = collected.session, collected.submission, collected.complete / "store"
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
    assert "sum 285" in (logs / f"job-driver-{submission}.log").read_text()
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
