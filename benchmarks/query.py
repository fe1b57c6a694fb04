"""How long the requests of the dashboard and of the ray CLI take, on a session of a given size, over real HTTP.

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

from rayhistory.layout import Layout, SessionRef


def requests(some_task: str) -> dict[str, str]:
    job = "filter_keys=job_id&filter_predicates=%3D&filter_values=01000000"
    failed = "filter_keys=state&filter_predicates=%3D&filter_values=FAILED"
    named = "filter_keys=name&filter_predicates=%3D&filter_values=stage_7"
    one = f"filter_keys=task_id&filter_predicates=%3D&filter_values={some_task}"
    return {
        "a task by id": f"api/v0/tasks?detail=1&limit=1&{one}",
        "100 tasks": "api/v0/tasks?limit=100",
        "100 failed tasks": f"api/v0/tasks?limit=100&{failed}",
        "100 tasks of a name": f"api/v0/tasks?limit=100&{named}",
        "100 tasks of a job": f"api/v0/tasks?limit=100&{job}",
        "10,000 tasks with details": f"api/v0/tasks?detail=1&limit=10000&{job}",
        "summary by function": f"api/v0/tasks/summarize?{job}",
        "summary by lineage": f"api/v0/tasks/summarize?summary_by=lineage&{job}",
        "jobs": "api/jobs/",
        "actors": "logical/actors",
        "nodes": "nodes?view=summary",
    }


ROWS = "api/history/rows/tasks?columns=task_id,name,state,start_time_ms"


def own_requests() -> dict[str, str]:
    return {
        "100 rows by start": f"{ROWS}&sort=-start_time_ms",
        "100 rows by name": f"{ROWS}&sort=name,-start_time_ms",
        "100 rows by node": f"{ROWS}&sort=node_id",
        "100 rows whose name has": f"{ROWS}&where=name~stage_1",
        "100 rows whose error has": f"{ROWS}&where=error_message~first fails",
        "100 rows of a time": f"{ROWS}&where=start_time_ms>=1794770003000&where=start_time_ms<1794770004000",
        "100 whole rows by start": "api/history/rows/tasks?sort=-start_time_ms",
    }


def large_requests() -> dict[str, str]:
    return {name: url for name, url in requests("").items() if "details" in name or "lineage" in name} | {
        "10,000 rows by start": f"{ROWS}&sort=-start_time_ms&limit=10000",
        "10,000 whole rows by start": "api/history/rows/tasks?sort=-start_time_ms&limit=10000",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time requests.")
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--store", help="keep the session there, and use it again")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment), Server(environment) as server:
        print(f"opened again by another server:  {server.time(ref, 'nodes?view=summary') * 1000:.0f} ms")
        measure(server, ref, arguments.rounds)
        pages(server, ref, arguments.rounds)
        together(server, ref)
        print(f"memory of the serving process: {server.peak_mb():.0f} MB at most")


@contextmanager
def prepared(tasks: int, store: str | None) -> Iterator[tuple[SessionRef, dict[str, str]]]:
    """A session of so many tasks that some server has opened, and the environment to serve it."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        place = Path(store or directory)
        ref = session_ref(tasks)
        if not (place / Layout().metadata_key(ref)).exists():
            generate(place, tasks)
        environment = os.environ | {"LOCAL_STORAGE_DIR": str(place), "RAYHISTORY_INDEX_AHEAD": "false",
                                    "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}  # fmt: skip
        with Server(environment) as server:
            began = time.monotonic()
            server.until_answered(ref)
            print(f"first open of {tasks:,} tasks: {time.monotonic() - began:.2f} s")
        yield ref, environment


def measure(server: "Server", ref: SessionRef, rounds: int) -> None:
    task = f"{7 * SCATTER % 2**64:016x}" + "f" * 24 + "01000000"
    print(f"{'request':<28} {'first':>9} {'p50':>9} {'p99':>9} {'again':>9}   (ms)")
    for name, url in (requests(task) | own_requests()).items():
        first, again = server.time(ref, url), server.time(ref, url)
        times = [server.time(ref, _not_kept(url)) for _ in range(rounds)]
        report(name, first, times, again)


def pages(server: "Server", ref: SessionRef, rounds: int) -> None:
    """By cursor, the last page costs what the first does."""
    address = f"{ROWS}&sort=-start_time_ms"
    cursor, number = "", 1
    while cursor is not None:
        if number in (1, 101, 1_001, 10_001):
            times = [server.time(ref, _not_kept(f"{address}&limit=100&cursor={cursor}")) for _ in range(rounds)]
            report(f"page {number:,} by cursor", times[0], times, times[-1])
        cursor = server.json(ref, f"{address}&limit=10000&cursor={cursor}")["next"]
        number += 100


def together(server: "Server", ref: SessionRef, visitors: int = 20) -> None:
    """Many who each want something large that nobody has asked for before."""
    print(f"{f'{visitors} visitors at once':<28} {'all':>9} {'memory':>9}   (ms, MB at most until then)")
    with ThreadPoolExecutor(visitors) as pool:
        for name, url in large_requests().items():
            began = time.perf_counter()
            list(pool.map(lambda address: server.time(ref, _not_kept(address)), [url] * visitors))
            taken = (time.perf_counter() - began) * 1000
            print(f"{name:<28} {taken:>9.0f} {server.peak_mb():>9.0f}", flush=True)


def _not_kept(url: str) -> str:
    """The same question in words that nobody has used before."""
    return f"{url}{'&' if '?' in url else '?'}where=job_id!=x{time.monotonic_ns()}"


def report(name: str, first: float, times: list[float], again: float) -> None:
    times = sorted(times)
    worst = times[max(0, round(0.99 * len(times)) - 1)]
    figures = (first, statistics.median(times), worst, again)
    print(f"{name:<28} " + " ".join(f"{figure * 1000:>9.0f}" for figure in figures), flush=True)


class Server:
    """A history server in a process of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rayhistory.server.main import main; main()", "--port=0", "--host=127.0.0.1",
             "--expensive-calls=0"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr
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
        began = time.perf_counter()
        answer = self._http.get(ref.url + url)
        assert answer.status_code == 200, answer.text[:200]
        return time.perf_counter() - began

    def json(self, ref: SessionRef, url: str) -> Any:
        return self._http.get(ref.url + url).raise_for_status().json()

    def until_answered(self, ref: SessionRef) -> None:
        while self._http.get(ref.url + "api/jobs/").status_code != 200:
            time.sleep(0.2)

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
