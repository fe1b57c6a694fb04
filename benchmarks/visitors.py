"""What many visitors of one session wait for: the requests of the dashboard's pages, over real HTTP.

python benchmarks/visitors.py [TASKS] [--visitors 20] [--rounds 10] [--pause 1] [--store DIRECTORY]

A visitor opens one page after the other, with a pause between them: the dashboard itself polls every four seconds.
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

from rayhistory.layout import SessionRef

JOB = "filter_keys=job_id&filter_predicates=%3D&filter_values=01000000"
TABLE = f"api/v0/tasks?detail=1&limit=10000&{JOB}"


def pages(node: str) -> dict[str, list[str]]:
    """What each page of the dashboard asks for."""
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
    """A browser: it keeps what it was given, and asks whether that still holds."""

    def __init__(self, http: httpx.AsyncClient, ref: SessionRef, *, keeps: bool) -> None:
        self._http = http
        self._ref = ref
        self._keeps = keeps
        self._tags: dict[str, str] = {}

    async def ask(self, url: str) -> tuple[float, int]:
        known = {"If-None-Match": self._tags[url]} if url in self._tags else {}
        began = time.perf_counter()
        async with self._http.stream("GET", self._ref.url + url, headers=known) as answer:
            async for _ in answer.aiter_raw():
                pass
        took = time.perf_counter() - began
        assert answer.status_code in (200, 304), answer
        if self._keeps and "etag" in answer.headers:
            self._tags[url] = answer.headers["etag"]
        return took, answer.status_code


async def visit(server: Server, ref: SessionRef, arguments: argparse.Namespace) -> None:
    """The first visitor alone, then all; then all again, now with what they have kept."""
    async with httpx.AsyncClient(base_url=server.address, timeout=120, trust_env=False, limits=_LIMITS) as http:
        summary = (await http.get(ref.url + "nodes?view=summary")).json()["data"]["summary"]
        asked = pages(summary[0]["raylet"]["nodeId"])
        print("the first visitor:")
        await together([Visitor(http, ref, keeps=False)], asked, 1, 0)
        for keeps, what in ((False, "that keep nothing"), (True, "that poll with ETag")):
            print(f"{arguments.visitors} visitors {what}:")
            visitors = [Visitor(http, ref, keeps=keeps) for _ in range(arguments.visitors)]
            await together(visitors, asked, arguments.rounds, arguments.pause)


async def together(visitors: list[Visitor], asked: dict[str, list[str]], rounds: int, pause: float) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    statuses: list[int] = []

    async def one(visitor: Visitor, number: int) -> None:
        names = list(asked)
        await asyncio.sleep(pause * number / len(visitors))
        for turn in range(rounds * len(names)):
            name = names[(turn + number) % len(names)]
            for took, status in await asyncio.gather(*map(visitor.ask, asked[name])):
                times[name].append(took)
                statuses.append(status)
            await asyncio.sleep(pause)

    await asyncio.gather(*(one(visitor, number) for number, visitor in enumerate(visitors)))
    for name, found in sorted(times.items()):
        found.sort()
        worst = found[max(0, round(0.99 * len(found)) - 1)]
        print(f"  {name:<10} {len(found):>6} requests   p50 {statistics.median(found) * 1000:>6.0f} ms   p99 "
              f"{worst * 1000:>6.0f} ms", flush=True)  # fmt: skip
    print(f"  {statuses.count(304) / len(statuses):.0%} of {len(statuses)} answers were 304")


_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=200)


def first_paint(address: str) -> tuple[float, float]:
    """Milliseconds to the first paint of Overview, and until it shows jobs: in a browser that has nothing yet."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}?bare=1#/overview")
        page.get_by_text("Recent jobs").wait_for()
        shown = page.evaluate("performance.now()")
        return page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"), shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the pages of many visitors.")
    parser.add_argument("tasks", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pages of a visitor")
    parser.add_argument("--store", help="keep the session there, and use it again")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment), Server(environment) as server:
        server.time(ref, "nodes?view=summary")
        first, again = server.time(ref, TABLE), min(server.time(ref, TABLE) for _ in range(5))
        print(f"the table of 10,000 tasks: {first * 1000:.0f} ms first, {again * 1000:.0f} ms again")
        painted, shown = min(first_paint(server.address.rstrip("/") + ref.url) for _ in range(3))
        print(f"Overview in a browser: first paint after {painted:.0f} ms, recent jobs after {shown:.0f} ms")
        asyncio.run(visit(server, ref, arguments))
        print(f"memory of the serving process: {server.peak_mb():.0f} MB at most")


if __name__ == "__main__":
    main()
