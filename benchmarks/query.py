"""Time the requests of the dashboard and of the ray CLI over HTTP, on a session of a given size.

python benchmarks/query.py [TASKS] [--rounds 100] [--store DIRECTORY]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from generate import SCATTER, generate, session_ref
from growth import REF, grow

from rayhistory.sessions import Layout, SessionRef


def ray_requests(some_task: str) -> dict[str, str]:
    job = "filter_keys=job_id&filter_predicates=%3D&filter_values=01000000"
    failed = "filter_keys=state&filter_predicates=%3D&filter_values=FAILED"
    named = "filter_keys=name&filter_predicates=%3D&filter_values=stage_7"
    one = f"filter_keys=task_id&filter_predicates=%3D&filter_values={some_task}"
    return {
        "task by id": f"api/v0/tasks?detail=1&limit=1&{one}",
        "100 tasks": "api/v0/tasks?limit=100",
        "100 failed tasks": f"api/v0/tasks?limit=100&{failed}",
        "100 tasks by name": f"api/v0/tasks?limit=100&{named}",
        "100 tasks by job": f"api/v0/tasks?limit=100&{job}",
        "10,000 tasks with details": f"api/v0/tasks?detail=1&limit=10000&{job}",
        "summary by function": f"api/v0/tasks/summarize?{job}",
        "summary by lineage": f"api/v0/tasks/summarize?summary_by=lineage&{job}",
        "jobs": "api/jobs/",
        "actors": "logical/actors",
        "nodes": "nodes?view=summary",
    }


ROWS = "api/history/rows/tasks?columns=task_id,name,state,start_time_ms"


def row_requests() -> dict[str, str]:
    return {
        "100 rows by start": f"{ROWS}&sort=-start_time_ms",
        "100 rows by name": f"{ROWS}&sort=name,-start_time_ms",
        "100 rows by node": f"{ROWS}&sort=node_id",
        "100 rows, name contains": f"{ROWS}&where=name~stage_1",
        "100 rows, error contains": f"{ROWS}&where=error_message~first fails",
        "100 rows in a time range": f"{ROWS}&where=start_time_ms>=1794770003000&where=start_time_ms<1794770004000",
        "100 full rows by start": "api/history/rows/tasks?sort=-start_time_ms",
    }


def large_requests() -> dict[str, str]:
    return {name: url for name, url in ray_requests("").items() if "details" in name or "lineage" in name} | {
        "10,000 rows by start": f"{ROWS}&sort=-start_time_ms&limit=10000",
        "10,000 full rows by start": "api/history/rows/tasks?sort=-start_time_ms&limit=10000",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time requests to the history server.")
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment), Server(environment) as server:
        print(f"opened by a second server:  {server.time(ref, 'nodes?view=summary') * 1000:.0f} ms")
        measure(server, ref, arguments.rounds)
        pages(server, ref, arguments.rounds)
        run_concurrently(server, ref)
        print(f"server memory: {server.peak_mb():.0f} MB peak")


@contextmanager
def prepared(tasks: int, store: str | None, folds: int = 1) -> Iterator[tuple[SessionRef, dict[str, str]]]:
    """Prepare an indexed session; yields it, and the environment of a server for it.

    With several folds it was indexed while it grew, so that later parts replace rows of earlier ones.
    """
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        root = Path(store or directory)
        ref = session_ref(tasks) if folds == 1 else REF
        if not (root / Layout().metadata_key(ref)).exists():
            _ = generate(root, tasks) if folds == 1 else grow(root, tasks, folds)
        environment = os.environ | {"LOCAL_STORAGE_DIR": str(root), "RAYHISTORY_INDEX_AHEAD": "false",
                                    "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}  # fmt: skip
        with Server(environment) as server:
            start_time = time.monotonic()
            server.wait_until_indexed(ref)
            print(f"first open of {tasks:,} tasks: {time.monotonic() - start_time:.2f} s")
        yield ref, environment


def measure(server: "Server", ref: SessionRef, rounds: int) -> None:
    task = f"{7 * SCATTER % 2**64:016x}" + "f" * 24 + "01000000"
    print(f"{'request':<28} {'first':>9} {'p50':>9} {'p99':>9} {'cached':>9}   (ms)")
    for name, url in (ray_requests(task) | row_requests()).items():
        first, cached = server.time(ref, url), server.time(ref, url)
        times = [server.time(ref, _uncached(url)) for _ in range(rounds)]
        report(name, first, times, cached)


def pages(server: "Server", ref: SessionRef, rounds: int) -> None:
    """Time pages by cursor: the last page must cost as much as the first."""
    url = f"{ROWS}&sort=-start_time_ms"
    cursor, number = "", 1
    while cursor is not None:
        if number in (1, 101, 1_001, 10_001):
            times = [server.time(ref, _uncached(f"{url}&limit=100&cursor={cursor}")) for _ in range(rounds)]
            report(f"page {number:,} by cursor", times[0], times, times[-1])
        cursor = server.json(ref, f"{url}&limit=10000&cursor={cursor}")["next"]
        number += 100


def run_concurrently(server: "Server", ref: SessionRef, visitors: int = 20) -> None:
    """Time large uncached requests from many visitors at once."""
    print(f"{f'{visitors} visitors at once':<28} {'all':>9} {'memory':>9}   (ms, peak MB so far)")
    with ThreadPoolExecutor(visitors) as pool:
        for name, url in large_requests().items():
            start_time = time.perf_counter()
            list(pool.map(lambda each: server.time(ref, _uncached(each)), [url] * visitors))
            milliseconds = (time.perf_counter() - start_time) * 1000
            print(f"{name:<28} {milliseconds:>9.0f} {server.peak_mb():>9.0f}", flush=True)


def _uncached(url: str) -> str:
    """Change a request without changing its result, so that the response cache does not apply."""
    return f"{url}{'&' if '?' in url else '?'}where=job_id!=x{time.monotonic_ns()}"


def report(name: str, first: float, times: list[float], cached: float) -> None:
    times = sorted(times)
    p99 = times[max(0, round(0.99 * len(times)) - 1)]
    figures = (first, statistics.median(times), p99, cached)
    print(f"{name:<28} " + " ".join(f"{figure * 1000:>9.0f}" for figure in figures), flush=True)


class Server:
    """A history server process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rayhistory.server.main import main; main()", "--port=0", "--host=127.0.0.1",
             "--rate-limit=0"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr
        self.pid = self._process.pid
        line = ""
        while "serving" not in line:
            line = self._process.stderr.readline()
        self.address = line.split('"address":"')[1].split('"')[0]
        self._http = httpx.Client(base_url=self.address, timeout=120, trust_env=False)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait()

    def time(self, ref: SessionRef, url: str) -> float:
        start_time = time.perf_counter()
        response = self._http.get(ref.url + url)
        assert response.status_code == 200, response.text[:200]
        return time.perf_counter() - start_time

    def json(self, ref: SessionRef, url: str) -> Any:
        return self._http.get(ref.url + url).raise_for_status().json()

    def wait_until_indexed(self, ref: SessionRef) -> None:
        while self._http.get(ref.url + "api/jobs/").status_code != 200:
            time.sleep(0.2)

    def cpu_s(self) -> float:
        """Return the CPU time of the server and its children so far."""
        return _cpu_s(self._process.pid)

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children, also of those that have ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(_cpu_s, map(int, children)))


if __name__ == "__main__":
    main()
