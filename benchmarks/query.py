"""How long the requests of the dashboard and of the ray CLI take, on a session of a given size, over real HTTP.

python benchmarks/query.py [TASKS] [--rounds 20]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from generate import generate

from rayhistory.layout import SessionRef


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Time requests.")
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        ref = generate(Path(directory), arguments.tasks)
        environment = os.environ | {"LOCAL_STORAGE_DIR": directory, "RAYHISTORY_INDEX_AHEAD": "false",
                                    "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}  # fmt: skip
        with Server(environment) as server:
            began = time.monotonic()
            server.until_answered(ref)
            print(f"first open of {arguments.tasks:,} tasks, fold included: {time.monotonic() - began:.2f} s")
        with Server(environment) as server:
            print(f"opened again by another server:  {server.time(ref, 'nodes?view=summary') * 1000:.0f} ms")
            measure(server, ref, arguments.rounds)
            print(f"memory of the serving process: {server.peak_mb():.0f} MB at most")


def measure(server: "Server", ref: SessionRef, rounds: int) -> None:
    task = f"{7:016x}" + "f" * 24 + "01000000"
    print(f"{'request':<28} {'first':>9} {'p50':>9} {'p99':>9}   (ms)")
    for name, url in requests(task).items():
        first = server.time(ref, url)
        times = sorted(server.time(ref, url) for _ in range(rounds))
        worst = times[max(0, round(0.99 * len(times)) - 1)]
        print(
            f"{name:<28} {first * 1000:>9.0f} {statistics.median(times) * 1000:>9.0f} {worst * 1000:>9.0f}", flush=True
        )


class Server:
    """A history server in a process of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from rayhistory.server.main import main; main()", "--port=0", "--host=127.0.0.1"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr
        line = ""
        while "serving" not in line:
            line = self._process.stderr.readline()
        address = line.split('"address":"')[1].split('"')[0]
        self._http = httpx.Client(base_url=address, timeout=120, trust_env=False)

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

    def until_answered(self, ref: SessionRef) -> None:
        while self._http.get(ref.url + "api/jobs/").status_code != 200:
            time.sleep(0.2)

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
