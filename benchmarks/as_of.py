"""Time how soon the dashboard shows a session as of another time, as after a move of the slider.

python benchmarks/as_of.py [TASKS] [--moves 20] [--store DIRECTORY]

Every move goes to a new point in time. `overview` is the page on which the dashboard opens: all its requests at once,
until the last response. The requests for tasks are timed one by one. `CPU` is that of the server and its processes,
per move: on a busy machine, it says more than the times.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
from generate import BEGIN
from query import Server, prepared

from rayhistory.sessions import SessionRef

OVERVIEW = ("nodes?view=summary", "timezone", "api/jobs/", "api/serve/applications/", "api/cluster_status?format=1",
            "events", "api/v0/cluster_metadata")  # fmt: skip
JOB = "filter_keys=job_id&filter_predicates=%3D&filter_values=01000000"
TASKS = {
    "100 tasks": "api/v0/tasks?limit=100",
    "100 failed tasks": "api/v0/tasks?limit=100&filter_keys=state&filter_predicates=%3D&filter_values=FAILED",
    "100 rows by start": "api/history/rows/tasks?columns=task_id,name,state,start_time_ms&sort=-start_time_ms",
    "100 tasks with details": f"api/v0/tasks?detail=1&limit=100&{JOB}",
    "summary by function": f"api/v0/tasks/summarize?{JOB}",
}
TASK_INTERVAL_NS = 150_007


def main() -> None:
    parser = argparse.ArgumentParser(description="Move the slider of a session.")
    parser.add_argument("tasks", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    rng = random.Random(0)
    with (
        prepared(arguments.tasks, arguments.store) as (ref, environment),
        Server(environment) as server,
        httpx.Client(base_url=server.address, timeout=120, trust_env=False) as http,
    ):
        last_ms = (BEGIN + arguments.tasks * TASK_INTERVAL_NS) // 10**6
        points = [rng.randrange(BEGIN // 10**6, last_ms) for _ in range(arguments.moves + 1)]
        print(f"{'as of a new point in time':<28} {'first':>9} {'p50':>9} {'p95':>9} {'CPU':>9}   (ms)")
        timed_get(http, ref, OVERVIEW[0], points.pop())  # starts the process that builds small tables
        report("overview", server, points, partial(open_page, http, ref))
        for name, path in TASKS.items():
            report(name, server, [point + len(path) for point in points], partial(timed_get, http, ref, path))
        print(f"server memory: {server.peak_mb():.0f} MB peak")


def open_page(http: httpx.Client, ref: SessionRef, point: int) -> float:
    start_time = time.perf_counter()
    with ThreadPoolExecutor(len(OVERVIEW)) as pool:
        list(pool.map(lambda path: timed_get(http, ref, path, point), OVERVIEW))
    return time.perf_counter() - start_time


def timed_get(http: httpx.Client, ref: SessionRef, path: str, point: int) -> float:
    """Request until there is a response, as clients do after 503."""
    start_time = time.perf_counter()
    url = f"{ref.url.rstrip('/')}@{point}/{path}"
    while (response := http.get(url)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        time.sleep(1)
    assert response.status_code == httpx.codes.OK, (response.status_code, response.text[:200])
    return time.perf_counter() - start_time


def report(name: str, server: Server, points: list[int], move: Callable[[int], float]) -> None:
    cpu_s = server.cpu_s()
    times = [move(point) for point in points]
    ordered = sorted(times)
    p95 = ordered[max(0, round(0.95 * len(ordered)) - 1)]
    figures = (times[0], statistics.median(times), p95, (server.cpu_s() - cpu_s) / len(times))
    print(f"{name:<28} " + " ".join(f"{figure * 1000:>9.0f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
