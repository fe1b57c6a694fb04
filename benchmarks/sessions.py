"""Measure the server's memory while many visitors open many sessions.

python benchmarks/sessions.py [SESSIONS] [TASKS] [--visitors 8] [--store DIRECTORY]
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from generate import SESSION, generate, session_ref
from query import Server

from rayhistory.sessions import Layout, SessionRef

PAGES = (
    "api/jobs/",
    "nodes?view=summary",
    "logical/actors",
    "api/v0/tasks?limit=100",
    "api/v0/tasks/summarize?filter_keys=job_id&filter_predicates=%3D&filter_values=01000000",
    "api/v0/tasks?limit=100&filter_keys=state&filter_predicates=%3D&filter_values=FAILED",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Visit many sessions with several visitors.")
    parser.add_argument("sessions", nargs="?", type=int, default=50)
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        root = Path(arguments.store or directory)
        refs = sessions(root, arguments.sessions, arguments.tasks)
        environment = os.environ | {"LOCAL_STORAGE_DIR": str(root), "RAYHISTORY_INDEX_AHEAD": "false",
                                    "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}  # fmt: skip
        index: list[str | Path] = [Path(sys.executable).parent / "rayhistory", "index"]
        subprocess.run(index, env=environment, check=True, stdout=subprocess.DEVNULL)
        with Server(environment) as server:
            times = sorted(asyncio.run(visit(server.address, refs, arguments.visitors)))
            p99 = times[max(0, round(0.99 * len(times)) - 1)]
            print(f"{len(refs)} sessions of {arguments.tasks:,} tasks, {arguments.visitors} visitors in random order")
            print(
                f"{len(times):,} requests: p50 {statistics.median(times) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, "
                f"server memory {server.peak_mb():.0f} MB peak"
            )


def sessions(root: Path, number: int, tasks: int) -> list[SessionRef]:
    """Generate one session, and link its events under the names of the others."""
    layout = Layout()
    first = session_ref(tasks)
    if not (root / layout.metadata_key(first)).exists():
        generate(root, tasks)
    refs = [first]
    for i in range(1, number):
        ref = SessionRef("default", f"{first.cluster}-{i}", SESSION)
        refs.append(ref)
        marker = root / layout.metadata_key(ref)
        if not marker.exists():
            source = root / layout.history_prefix(first)
            for path in source.rglob("*.jsonl.gz"):
                copy = root / layout.history_prefix(ref) / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, copy)
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    return refs


async def visit(address: str, refs: list[SessionRef], visitors: int) -> list[float]:
    """Let every visitor open the pages of every session once, in random order. Returns request times."""
    times: list[float] = []

    async def one(number: int) -> None:
        order = random.Random(number).sample(refs, len(refs))
        async with httpx.AsyncClient(base_url=address, timeout=300, trust_env=False) as http:
            for ref in order:
                for page in PAGES:
                    start_time = time.perf_counter()
                    response = await http.get(ref.url + page)
                    assert response.status_code == 200, response.text[:200]
                    times.append(time.perf_counter() - start_time)

    await asyncio.gather(*map(one, range(visitors)))
    return times


if __name__ == "__main__":
    main()
