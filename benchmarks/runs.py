"""Lists of runs over 10,000 generated summaries in a real S3 server, and regressions that were planted in fleets.

    python benchmarks/runs.py [--sessions 10000] [--skip-store]

Prints the cost of compaction per session as the table grows, the time of `/runs` cold (empty cache) and warm, and
precision and recall of regressions. On a busy machine, compare processor times: they do not count waiting for others.
"""

import argparse
import asyncio
import dataclasses
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from starlette.testclient import TestClient

from rayhistory.runs.run_compaction import RunCompactor
from rayhistory.runs.run_table import RunTable
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.runs.trends import MIN_RATIO, MIN_SLOWER_MS, find_regression
from rayhistory.server.app import create_app
from rayhistory.storage import Store
from support.archived_sessions import StoreLocation, bucket
from support.generated_runs import LAYOUT, announce, fleet, ref_of
from support.store_servers.seaweed import seaweedfs

BATCH = 500
FUNCTIONS = 30
WARM_REQUESTS = 20
VIEWS = ("/runs", "/runs?sort=-p95_ms", "/runs?q=job-01&failed=1", "/runs.json?page=1", "/fleet")


@contextmanager
def s3_store(directory: Path) -> Iterator[StoreLocation]:
    with seaweedfs(directory) as endpoint:
        location = bucket(endpoint)
        os.environ.update(location.environment)
        asyncio.run(_create_bucket(location))
        yield location


async def _create_bucket(location: StoreLocation) -> None:
    store = location.open()
    await store.put("probe", b"")
    await store.delete("probe")
    await store.close()


async def _exist(store: Store, stored: list[StoredSummary]) -> None:
    """Make the sessions of summaries exist."""
    for start in range(0, len(stored), BATCH):
        await asyncio.gather(
            *(store.put(LAYOUT.metadata_key(ref_of(each)), b"") for each in stored[start : start + BATCH])
        )


async def fill(location: StoreLocation, cache: Path, sessions: int) -> None:
    """Announce and compact summaries batch by batch, and print what each session costs."""
    store = location.open()
    table = RunTable(store, LAYOUT, cache)
    compactor = RunCompactor(table)
    everything = list(fleet(sessions, functions=FUNCTIONS))
    await _exist(store, everything)
    costs: list[tuple[float, float, float]] = []
    for start in range(0, sessions, BATCH):
        batch = everything[start : start + BATCH]
        await announce(store, batch)
        began, began_cpu = time.perf_counter(), time.process_time()
        report = await compactor.compact()
        spent = time.perf_counter() - began, time.process_time() - began_cpu
        costs.append((*(seconds * 1000 / len(batch) for seconds in spent), report.written_rows / len(batch)))  # type: ignore[arg-type]
    quarter = max(1, len(costs) // 4)
    for name, some in (("first quarter", costs[:quarter]), ("last quarter", costs[-quarter:])):
        elapsed, processor, rows = (statistics.fmean(values) for values in zip(*some, strict=True))
        print(
            f"compaction, {name}: {elapsed:.2f} ms ({processor:.2f} ms of processor time) and {rows:.2f} rows written "
            "per session"
        )
    parts = table.manifest.parts
    size, details = (sum(values) / 1e6 for values in zip(*((p.size, p.details_size) for p in parts), strict=True))
    print(f"table: {len(parts)} parts, {size:.1f} MB for {sessions} sessions, of which {details:.1f} MB are details")
    await store.close()


def measure(location: StoreLocation, cache: Path) -> None:
    """Print the time of pages, cold and warm."""
    settings = dataclasses.replace(location.settings(), cache_dir=str(cache), index_ahead=False, auth="none")
    with TestClient(create_app(settings)) as client:
        began, began_cpu = time.perf_counter(), time.process_time()
        response = client.get("/runs")
        cold_s, processor_s = time.perf_counter() - began, time.process_time() - began_cpu
        response.raise_for_status()
        print(
            f"/runs cold, empty cache: {cold_s * 1000:.0f} ms ({processor_s * 1000:.0f} ms of processor time), "
            f"{len(response.content) / 1000:.0f} kB of HTML"
        )
        client.get("/").raise_for_status()  # lists all sessions
        for view in VIEWS:
            times = []
            for _ in range(WARM_REQUESTS):
                began = time.perf_counter()
                client.get(view).raise_for_status()
                times.append((time.perf_counter() - began) * 1000)
            slowest = sorted(times)[-2]
            print(f"{view} warm: median {statistics.median(times):.0f} ms, p95 {slowest:.0f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MB")


def plant(chance: random.Random, noise: float) -> tuple[bool, bool]:
    """Make one job; return whether its last run was made slower, and whether that was found."""
    base = chance.uniform(60_000, 7_200_000)

    def duration() -> float:
        odd = chance.uniform(1.5, 3.0) if chance.random() < 0.03 else 1.0
        return base * chance.lognormvariate(0, noise) * odd

    earlier = [duration() for _ in range(chance.randint(6, 30))]
    planted = chance.random() < 0.3
    factor = chance.uniform(1.3, 3.0) if planted else 1.0
    last = base * chance.lognormvariate(0, noise) * factor
    worth = last > MIN_RATIO * base and last - base > MIN_SLOWER_MS
    return planted and worth, find_regression(int(last), earlier) is not None


def regressions(jobs: int = 5_000) -> None:
    """Print precision and recall of regressions in fleets with more and more noise."""
    for noise in (0.02, 0.05, 0.1, 0.2):
        chance = random.Random(7)
        results = [plant(chance, noise) for _ in range(jobs)]
        right = sum(planted and found for planted, found in results)
        reported, planted = sum(found for _, found in results), sum(planted for planted, _ in results)
        print(
            f"regressions, {noise:.0%} noise: precision {right / reported:.1%}, recall {right / planted:.1%} "
            f"({planted} planted in {jobs} jobs)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--skip-store", action="store_true", help="only regressions")
    arguments = parser.parse_args()
    regressions()
    if arguments.skip_store:
        return
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with s3_store(directory) as location:
            asyncio.run(fill(location, directory / "compaction", arguments.sessions))
            measure(location, directory / "cache")


if __name__ == "__main__":
    main()
