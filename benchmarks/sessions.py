"""Memory of the serving process when many visitors go from session to session.

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

from rayhistory.layout import Layout, SessionRef

PAGES = (
    "api/jobs/",
    "nodes?view=summary",
    "logical/actors",
    "api/v0/tasks?limit=100",
    "api/v0/tasks/summarize?filter_keys=job_id&filter_predicates=%3D&filter_values=01000000",
    "api/v0/tasks?limit=100&filter_keys=state&filter_predicates=%3D&filter_values=FAILED",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Visit many sessions in turn.")
    parser.add_argument("sessions", nargs="?", type=int, default=50)
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--store", help="keep the sessions there, and use them again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        place = Path(arguments.store or directory)
        refs = sessions(place, arguments.sessions, arguments.tasks)
        environment = os.environ | {"LOCAL_STORAGE_DIR": str(place), "RAYHISTORY_INDEX_AHEAD": "false",
                                    "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}  # fmt: skip
        index = [Path(sys.executable).parent / "rayhistory", "index"]
        subprocess.run(index, env=environment, check=True, stdout=subprocess.DEVNULL)
        with Server(environment) as server:
            times = sorted(asyncio.run(visit(server.address, refs, arguments.visitors)))
            worst = times[max(0, round(0.99 * len(times)) - 1)]
            print(f"{len(refs)} sessions of {arguments.tasks:,} tasks, {arguments.visitors} visitors in any order")
            print(
                f"{len(times):,} requests: p50 {statistics.median(times) * 1000:.0f} ms, p99 {worst * 1000:.0f} ms, "
                f"serving process {server.peak_mb():.0f} MB at most"
            )


def sessions(place: Path, number: int, tasks: int) -> list[SessionRef]:
    """One is generated; the others have the same events under names of their own."""
    layout = Layout()
    first = session_ref(tasks)
    if not (place / layout.metadata_key(first)).exists():
        generate(place, tasks)
    refs = [first]
    for i in range(1, number):
        ref = SessionRef("default", f"{first.cluster}-{i}", SESSION)
        refs.append(ref)
        marker = place / layout.metadata_key(ref)
        if not marker.exists():
            source = place / layout.history_prefix(first)
            for path in source.rglob("*.jsonl.gz"):
                copy = place / layout.history_prefix(ref) / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, copy)
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    return refs


async def visit(address: str, refs: list[SessionRef], visitors: int) -> list[float]:
    """Every visitor opens every session once, in an order of their own, and looks at its pages."""
    times: list[float] = []

    async def one(number: int) -> None:
        order = random.Random(number).sample(refs, len(refs))
        async with httpx.AsyncClient(base_url=address, timeout=300, trust_env=False) as http:
            for ref in order:
                for page in PAGES:
                    began = time.perf_counter()
                    answer = await http.get(ref.url + page)
                    assert answer.status_code == 200, answer.text[:200]
                    times.append(time.perf_counter() - began)

    await asyncio.gather(*map(one, range(visitors)))
    return times


if __name__ == "__main__":
    main()
