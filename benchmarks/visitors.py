"""Time the requests of the dashboard's pages over HTTP, for many visitors of one session.

python benchmarks/visitors.py [TASKS] [--visitors 20] [--rounds 10] [--pause 1] [--store DIRECTORY]

A visitor opens one page after the other, with a pause between them. The dashboard itself polls every four seconds.
"""

import argparse
import asyncio
import shutil
import statistics
import time
from collections import defaultdict

import httpx
from playwright.sync_api import sync_playwright
from query import Server, prepared

from rayhistory.sessions import SessionRef

JOB = "filter_keys=job_id&filter_predicates=%3D&filter_values=01000000"
TABLE = f"api/v0/tasks?detail=1&limit=10000&{JOB}"


def pages(node: str) -> dict[str, list[str]]:
    """Return the requests of each dashboard page."""
    return {
        "Jobs": ["api/jobs/", "api/v0/cluster_metadata", "timezone"],
        "job": [
            "api/jobs/01000000",
            f"api/v0/tasks/summarize?{JOB}",
            f"api/v0/tasks/summarize?summary_by=lineage&{JOB}",
            "api/v0/placement_groups?detail=1&limit=10000",
            "logical/actors",
            "api/data/datasets/01000000",
            "api/cluster_status?format=1",
        ],
        "Actors": ["logical/actors", "nodes?view=summary"],
        "Cluster": ["nodes?view=summary", f"nodes/{node}", "api/cluster_status"],
        "Logs": ["nodes?view=summary", f"api/v0/logs?node_id={node}&glob=*"],
    }


class Visitor:
    """A browser; with `caching`, it revalidates responses with their ETag."""

    def __init__(self, http: httpx.AsyncClient, ref: SessionRef, *, caching: bool) -> None:
        self._http = http
        self._ref = ref
        self._caching = caching
        self._etags: dict[str, str] = {}

    async def get(self, url: str) -> tuple[float, int]:
        headers = {"If-None-Match": self._etags[url]} if url in self._etags else {}
        start_time = time.perf_counter()
        async with self._http.stream("GET", self._ref.url + url, headers=headers) as response:
            async for _ in response.aiter_raw():
                pass
        seconds = time.perf_counter() - start_time
        assert response.status_code in (200, 304), response
        if self._caching and "etag" in response.headers:
            self._etags[url] = response.headers["etag"]
        return seconds, response.status_code


async def visit(server: Server, ref: SessionRef, arguments: argparse.Namespace) -> None:
    """Run one visitor, then all without a cache, then all with ETags."""
    async with httpx.AsyncClient(base_url=server.address, timeout=120, trust_env=False, limits=_LIMITS) as http:
        summary = (await http.get(ref.url + "nodes?view=summary")).json()["data"]["summary"]
        requests = pages(summary[0]["raylet"]["nodeId"])
        print("first visitor:")
        await run_concurrently([Visitor(http, ref, caching=False)], requests, 1, 0)
        for caching, label in ((False, "without a cache"), (True, "with ETags")):
            print(f"{arguments.visitors} visitors {label}:")
            visitors = [Visitor(http, ref, caching=caching) for _ in range(arguments.visitors)]
            await run_concurrently(visitors, requests, arguments.rounds, arguments.pause)


async def run_concurrently(visitors: list[Visitor], requests: dict[str, list[str]], rounds: int, pause: float) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    statuses: list[int] = []

    async def one(visitor: Visitor, number: int) -> None:
        names = list(requests)
        await asyncio.sleep(pause * number / len(visitors))
        for turn in range(rounds * len(names)):
            name = names[(turn + number) % len(names)]
            for seconds, status in await asyncio.gather(*map(visitor.get, requests[name])):
                times[name].append(seconds)
                statuses.append(status)
            await asyncio.sleep(pause)

    await asyncio.gather(*(one(visitor, number) for number, visitor in enumerate(visitors)))
    for name, found in sorted(times.items()):
        found.sort()
        p99 = found[max(0, round(0.99 * len(found)) - 1)]
        print(f"  {name:<10} {len(found):>6} requests   p50 {statistics.median(found) * 1000:>6.0f} ms   p99 "
              f"{p99 * 1000:>6.0f} ms", flush=True)  # fmt: skip
    print(f"  {statuses.count(304) / len(statuses):.0%} of {len(statuses)} responses were 304")


_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=200)


def first_paint(address: str) -> tuple[float, float]:
    """Return milliseconds to the first paint of Overview, and until it shows jobs, in a fresh browser."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}?bare=1#/overview")
        page.get_by_text("Recent jobs").wait_for()
        shown = page.evaluate("performance.now()")
        return page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"), shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Time dashboard pages for many visitors.")
    parser.add_argument("tasks", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pages of a visitor (default: 1)")
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment), Server(environment) as server:
        server.time(ref, "nodes?view=summary")
        first, cached = server.time(ref, TABLE), min(server.time(ref, TABLE) for _ in range(5))
        print(f"table of 10,000 tasks: {first * 1000:.0f} ms first, {cached * 1000:.0f} ms cached")
        painted, shown = min(first_paint(server.address.rstrip("/") + ref.url) for _ in range(3))
        print(f"Overview in a browser: first paint after {painted:.0f} ms, recent jobs after {shown:.0f} ms")
        asyncio.run(visit(server, ref, arguments))
        print(f"server memory: {server.peak_mb():.0f} MB peak")


if __name__ == "__main__":
    main()
