"""Time the queries of Ray's default dashboard over stored metrics, in a real server process.

    .venv/bin/python benchmarks/metrics.py [--case 100x1440:30,1440] [--series 300] [--directory] [--raw]

A case is a number of nodes, the minutes of samples at 15 s, and the ranges of the dashboard in minutes; several cases
can be given. Samples are made once and kept in build/bench-metrics. The session is indexed first, unless --raw is
given. Its store is SeaweedFS on the same machine, or a directory with --directory. Cold: a new server without any
cache; warm: the same requests once more; then another range. CPU is that of the server.
"""

import argparse
import asyncio
import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
KEPT = Path(__file__).parents[1] / "build" / "bench-metrics"
GOALS = ("100x1440:30,1440", "1000x60:10")


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


async def fill(store: Store, nodes: int, count: int, minutes: int) -> None:
    """Store samples of all nodes, whose clocks differ."""
    layout = Layout()
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
            await store.put(layout.metrics_key(REF, f"{node:056x}", first), data)


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
        command,
        env={**os.environ, **environment, "RAYHISTORY_CACHE_DIR": str(cache), "RAYHISTORY_LOG_LEVEL": "warning"},
        stdout=subprocess.DEVNULL,
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


class Case(NamedTuple):
    nodes: int
    minutes: int
    """Minutes of samples of each node."""
    ranges: list[int]
    """Ranges that the dashboard shows, in minutes."""

    @classmethod
    def parse(cls, text: str) -> "Case":
        nodes, minutes, ranges = re.split("[x:]", text)
        return cls(int(nodes), int(minutes), [int(each) for each in ranges.split(",")])


def opened(environment: dict[str, str]) -> Store:
    return open_store(resolve(SERVER, {}, {**os.environ, **environment})[0], writable=True)


def prepared(case: Case, series: int, *, raw: bool) -> Path:
    """Return a directory with the samples and the index of a case, made if it is not there."""
    directory = KEPT / f"{case.nodes}x{series}x{case.minutes}{'-raw' if raw else ''}"
    if directory.exists():
        return directory
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    environment = {"LOCAL_STORAGE_DIR": str(partial / "store")}
    (partial / "store").mkdir(parents=True)
    begin = time.perf_counter()
    asyncio.run(fill(opened(environment), case.nodes, series, case.minutes))
    print(f"made samples in {time.perf_counter() - begin:.0f} s")
    if not raw:
        begin = time.perf_counter()
        index(environment, partial / "index-cache")
        print(f"indexed in {time.perf_counter() - begin:.0f} s")
        shutil.rmtree(partial / "index-cache")
    partial.rename(directory)
    return directory


async def upload(files: dict[str, Path], target: Store) -> None:
    slots = asyncio.Semaphore(16)

    async def copy(key: str, path: Path) -> None:
        async with slots:
            await target.put(key, await asyncio.to_thread(path.read_bytes))

    await asyncio.gather(*(copy(key, path) for key, path in files.items()))


@contextlib.contextmanager
def stored(directory: Path, source: Path, *, in_directory: bool) -> Iterator[dict[str, str]]:
    """Yield the settings of a store that has all objects."""
    if in_directory:
        yield {"LOCAL_STORAGE_DIR": str(source)}
        return
    with seaweedfs(directory) as endpoint:
        environment = {
            "RAYHISTORY_STORE": "s3://benchmark", "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        os.environ.update(environment)  # the S3 client reads it
        files = {str(path.relative_to(source)): path for path in source.rglob("*") if path.is_file()}
        asyncio.run(upload(files, opened(environment)))
        try:
            yield environment
        finally:
            for name in environment:
                del os.environ[name]


def measure(case: Case, environment: dict[str, str], directory: Path) -> None:
    for minutes in case.ranges:
        with tempfile.TemporaryDirectory(dir=directory) as cache, serving(environment, Path(cache)) as (address, pid):
            httpx.get(f"{address}{REF.url}api/history/charts").raise_for_status()  # the server knows the session
            for state, less in (("cold", 0), ("warm", 0), ("another range", 3)):
                before = cpu_seconds(pid)
                seconds, slowest = asyncio.run(load(address, minutes - less))
                cpu = cpu_seconds(pid) - before
                print(
                    f"{case.nodes:>5} nodes, {minutes:>4} minutes, {state:13}  {seconds:6.2f} s  {cpu:6.2f} s of CPU  "
                    f"slowest panel {slowest:.2f} s"
                )
            print(f"{case.nodes:>5} nodes, {minutes:>4} minutes, peak memory    {peak_mib(pid):>4} MiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=Case.parse, action="append", metavar="NODESxMINUTES:RANGE,…")
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--directory", action="store_true", help="read from a directory instead of SeaweedFS")
    parser.add_argument("--raw", action="store_true", help="without an index")
    arguments = parser.parse_args()
    for case in arguments.case or [Case.parse(text) for text in GOALS]:
        kept = prepared(case, arguments.series, raw=arguments.raw)
        size = sum(
            path.stat().st_size for path in (kept / "store" / "ray-history" / "metrics").rglob("*") if path.is_file()
        )
        print(f"{case.nodes} nodes x {arguments.series} series x {case.minutes} minutes: "
              f"{size / case.nodes / case.minutes * 60 / 1000:.0f} KB per node and hour")  # fmt: skip
        with (
            tempfile.TemporaryDirectory() as name,
            stored(Path(name), kept / "store", in_directory=arguments.directory) as environment,
        ):
            measure(case, environment, Path(name))


if __name__ == "__main__":
    main()
