"""Counts of matching lines per file, per node and over time."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rayhistory.search.hit_counts import MAX_BUCKETS, TimeHistogram
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery
from support.memory_logs import NODE_A, NODE_B, MemoryLogs

TIMES = st.lists(st.integers(946_684_800_000, 4_102_444_800_000), max_size=300)


@given(TIMES, TIMES)
def test_a_histogram_counts_every_time_once_in_few_buckets(some: list[int], others: list[int]) -> None:
    histogram = TimeHistogram(some)
    histogram.merge(TimeHistogram(others))
    step = histogram.step_ms
    assert len(histogram.buckets) <= MAX_BUCKETS
    assert histogram.buckets == {
        start: sum(start <= ms < start + step for ms in some + others) for start in histogram.buckets
    }
    assert histogram.buckets.total() == len(some + others)


def test_counts_go_on_behind_the_page() -> None:
    line = b"2026-11-15 10:%02d:00 hit\n"
    logs = MemoryLogs({
        (NODE_A, "a.log"): b"".join(line % (n // 60) for n in range(600)), (NODE_A, "b.log"): b"hit\nmiss\n",
        (NODE_B, "a.log"): line % 59,
    })  # fmt: skip

    async def run(*, counts: bool) -> Scan:
        scanner = Scanner(1, 1000)
        scan = Scan(scanner, logs, SearchQuery("hit", limit=5, order="oldest", counts=counts))
        assert sum([len(found) async for found in scan.lines()]) == 5
        scanner.close()
        return scan

    scan = asyncio.run(run(counts=True))
    assert (scan.counts.complete, scan.total, scan.complete) == (True, 602, False)
    assert scan.counts.files == {(NODE_A, "a.log"): 600, (NODE_A, "b.log"): 1, (NODE_B, "a.log"): 1}
    assert scan.counts.nodes() == {NODE_A: 601, NODE_B: 1}
    assert scan.counts.times.buckets.total() == 602
    without = asyncio.run(run(counts=False))
    assert (without.counts.complete, without.total) == (False, None)
