"""Time the queries of Ray's default dashboard over stored metrics, in a real server process.

    .venv/bin/python benchmarks/metrics.py [--nodes 100] [--series 300] [--hours 1] [--minutes 30] [--s3] [--raw]

Samples are made at 15 s, for some hours, or only for the shown minutes (--hours 0). The session is indexed first,
unless --raw is given. Cold: a new server without any cache; warm: the same requests once more; then another range.
With --s3 the store is SeaweedFS on the same machine, else a directory. CPU is that of the server.
"""

import argparse
import asyncio
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
import numpy as np

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


def columns(generator: np.random.Generator, count: int) -> list[bytes]:
    """Return values as nodes have them: half of the series never change, others move in steps."""
    shape = count, STEPS_PER_HOUR
    moves = np.where(generator.random(shape) < 0.5, generator.integers(-50, 51, shape) / 10, 0.0)
    moves[::2] = 0.0
    values = np.maximum(0.0, generator.integers(10_000, size=(count, 1)) + np.cumsum(moves, axis=1))
    return [row.tobytes() for row in values]


async def fill(store: Store, nodes: int, count: int, minutes: int) -> int:
    """Store samples of all nodes, whose clocks differ; return the bytes."""
    layout, size = Layout(), 0
    await store.put(layout.metadata_key(REF), b"")
    for node in range(nodes):
        names = series_of(node, count)
        for hour in range(math.ceil(minutes / 60)):
            first = START_MS + hour * 3_600_000
            steps = min(STEPS_PER_HOUR, minutes * 60_000 // STEP_MS - hour * STEPS_PER_HOUR)
            times = [first + STEP_MS * step + node * 37 % STEP_MS for step in range(steps)]
            values = columns(np.random.default_rng([node, hour]), count)
            series = [
                SampledSeries(name, labels, column[: 8 * steps])
                for (name, labels), column in zip(names, values, strict=True)
            ]
            data = await asyncio.to_thread(encode, Samples(times, series, {}))
            size += len(data)
            await store.put(layout.metrics_key(REF, f"{node:056x}", first), data)
    return size


def index(environment: dict[str, str], cache: Path) -> None:
    command: list[str | Path] = [Path(sys.executable).with_name("rayhistory"), "index"]
    done = subprocess.run(
        command, env={**os.environ, **environment, "RAYHISTORY_CACHE_DIR": str(cache)}, capture_output=True, check=True
    )
    print(*(line for line in done.stdout.decode().splitlines() if "metrics:" in line), sep="\n")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(environment: dict[str, str], cache: Path) -> Iterator[tuple[str, int]]:
    port = free_port()
    command: list[str | Path] = [
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
    """Request all panels as a browser does; return the seconds in all, and those of the slowest request."""
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
    parser.add_argument("--raw", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, store_environment(Path(name), s3=arguments.s3) as environment:
        os.environ.update(environment)
        store = open_store(resolve(SERVER, {}, dict(os.environ))[0], writable=True)
        stored = 60 * arguments.hours or arguments.minutes
        size = asyncio.run(fill(store, arguments.nodes, arguments.series, stored))
        scale = f"{arguments.nodes} nodes x {arguments.series} series x {stored} minutes"
        print(f"{scale}: {size / arguments.nodes / stored * 60 / 1000:.0f} KB per node and hour")
        if not arguments.raw:
            index(environment, Path(name) / "index-cache")
        with serving(environment, Path(name) / "cache") as (address, pid):
            httpx.get(f"{address}{REF.url}api/history/charts").raise_for_status()  # the server knows the session
            for state, minutes in (("cold", 0), ("warm", 0), ("another range", 3)):
                before = cpu_seconds(pid)
                seconds, slowest = asyncio.run(load(address, arguments.minutes - minutes))
                cpu = cpu_seconds(pid) - before
                print(f"{state}: {seconds:.2f} s ({cpu:.2f} s of CPU), slowest panel {slowest:.2f} s")
            print(f"peak memory {peak_mib(pid)} MiB")


if __name__ == "__main__":
    main()
