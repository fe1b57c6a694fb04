"""Time the queries of Ray's default dashboard over stored metrics, in a real server process.

    .venv/bin/python benchmarks/metrics.py [--nodes 100] [--series 300] [--hours 1] [--minutes 30] [--s3]

Samples are made at 15 s. Cold: a new server without any cache; warm: the same requests once more. With --s3 the store
is SeaweedFS on the same machine, else a directory.
"""

import argparse
import asyncio
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx

from prometheus.corpus import metrics as chart_metrics
from rayhistory.metrics.dashboard_library import built_in_dashboards
from rayhistory.metrics.samples import SampledSeries, Samples, encode
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Store, open_store
from support.store_servers.processes import free_port
from support.store_servers.seaweed import KEY, SECRET, seaweedfs

REF = SessionRef("default", "bench", "session_2026-11-15_19-18-08_055078_15551")
START_MS = 1_794_770_000_000
STEP_MS, STEPS_PER_HOUR = 15_000, 240
UID = "rayDefaultDashboard"
CONCURRENCY = 6
"""Requests that a browser sends at once."""


def series_of(node: int, count: int) -> list[tuple[str, dict[str, str]]]:
    """Return series of one node: all metrics of the default dashboard, each with a few series."""
    prefixes = ("ray_node", "ray_component", "ray_resources", "ray_tasks", "ray_actors", "ray_object")
    names = sorted(name for name in chart_metrics() if name.startswith(prefixes))
    states = ("RUNNING", "FINISHED", "FAILED", "USED")
    common = {"ip": f"10.0.{node // 256}.{node % 256}", "RayNodeType": "worker", "IsRetry": "0"}
    found = []
    for number in range(count):
        repeat = number // len(names)
        labels = {**common, "State": states[repeat % 4], "Name": f"n{repeat}", "Component": f"c{number % 7}"}
        found.append((names[number % len(names)], labels))
    return found


def columns(generator: random.Random, count: int) -> list[bytes]:
    """Return values as nodes have them: half of the series never change, others move in steps."""
    found = []
    for number in range(count):
        value = float(generator.randrange(10_000))
        values = array("d")
        for _ in range(STEPS_PER_HOUR):
            if number % 2 and generator.random() < 0.5:
                value = max(0.0, value + generator.randrange(-50, 51) / 10)
            values.append(value)
        found.append(values.tobytes())
    return found


async def fill(store: Store, nodes: int, count: int, hours: int) -> int:
    layout, size = Layout(), 0
    variants = [columns(random.Random(seed), count) for seed in range(4)]
    await store.put(layout.metadata_key(REF), b"")
    for node in range(nodes):
        names = series_of(node, count)
        for hour in range(hours):
            first = START_MS + hour * 3_600_000
            times = [first + STEP_MS * step for step in range(STEPS_PER_HOUR)]
            values = variants[(node + hour) % len(variants)]
            series = [SampledSeries(name, labels, column) for (name, labels), column in zip(names, values, strict=True)]
            data = await asyncio.to_thread(encode, Samples(times, series, {}))
            size += len(data)
            await store.put(layout.metrics_key(REF, f"{node:056x}", first), data)
    return size


@contextlib.contextmanager
def serving(environment: dict[str, str], cache: Path) -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [
        Path(sys.executable).with_name("historyserver"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--index-ahead=false",
    ]
    process = subprocess.Popen(
        command, env={**os.environ, **environment, "RAYHISTORY_CACHE_DIR": str(cache)}, stdout=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{address}/readyz").status_code == 200:
                    break
            time.sleep(0.2)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


async def load(address: str, minutes: int) -> tuple[float, float]:
    """Request all panels as a browser does; return the seconds in all, and the CPU-independent slowest request."""
    dashboard = built_in_dashboards()[UID]
    panels = [panel.id for row in dashboard.rows if not row.collapsed for panel in row.panels]
    slots, slowest = asyncio.Semaphore(CONCURRENCY), 0.0
    async with httpx.AsyncClient(base_url=f"{address}{REF.url}api/history/charts/{UID}", timeout=300) as client:

        async def get(panel: int) -> None:
            nonlocal slowest
            async with slots:
                begin = time.perf_counter()
                params = {"from": f"now-{minutes}m", "to": "now", "points": "300", "var-SessionName": REF.session}
                response = await client.get(f"/panels/{panel}", params=params)
                assert response.status_code == 200, response.text
                slowest = max(slowest, time.perf_counter() - begin)

        begin = time.perf_counter()
        await asyncio.gather(*map(get, panels))
        return time.perf_counter() - begin, slowest


def peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return math.ceil(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


@contextlib.contextmanager
def store_environment(directory: Path, *, s3: bool) -> Iterator[dict[str, str]]:
    if not s3:
        yield {"LOCAL_STORAGE_DIR": str(directory / "store")}
        return
    with seaweedfs(directory) as endpoint:
        yield {
            "RAYHISTORY_STORE": "s3://benchmark", "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("nodes", 100), ("series", 300), ("hours", 1), ("minutes", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--s3", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, store_environment(Path(name), s3=arguments.s3) as environment:
        os.environ.update(environment)
        store = open_store(resolve(SERVER, {}, dict(os.environ))[0], writable=True)
        size = asyncio.run(fill(store, arguments.nodes, arguments.series, arguments.hours))
        objects = arguments.nodes * arguments.hours
        scale = f"{arguments.nodes} nodes x {arguments.series} series x {arguments.hours} h"
        print(f"{scale}: {size / objects / 1000:.0f} KB per node and hour")
        with serving(environment, Path(name) / "cache") as (address, pid):
            for state in ("cold", "warm"):
                seconds, slowest = asyncio.run(load(address, arguments.minutes))
                print(f"{state}: {arguments.minutes} minutes in {seconds:.2f} s, slowest panel {slowest:.2f} s")
            print(f"peak memory {peak_mib(pid)} MiB")


if __name__ == "__main__":
    main()
