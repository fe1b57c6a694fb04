"""Time SQL of many visitors at once on one session of a server, and everybody else's requests meanwhile.

python benchmarks/sql_visitors.py [TASKS] [--visitors 20] [--store DIRECTORY]
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
from query import Server, prepared

from rayhistory.sessions import SessionRef
from support.process_tree import ProcessWatch

SQL_PROCESS = "rayhistory.index.query.sql_process"
MEMORY = "256Mi"
TIMEOUT = "5s"
READER = "token-of-a-visitor-who-reads"
ORDINARY = "select name, state, count(*), avg(end_time_ms - start_time_ms) from tasks group by all order by all"
HOSTILE = {
    "never ends": "select count(*) from range(1000000000) a, range(1000000000) b",
    "memory": "select list(x) from (select repeat('x', 1000) || range as x from range(10000000))",
    "columns": "select " + ", ".join(f"1 as c{number}" for number in range(1_200)),
    "rows": "select a.range from range(100000) a, range(1000) b",
}


class Reply(NamedTuple):
    status: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Time SQL of many visitors at once.")
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment):
        tokens = [f"token-of-visitor-{number}" for number in range(arguments.visitors)]
        access = Path(environment["RAYHISTORY_CACHE_DIR"]).with_name("access")
        access.write_text("".join(f"token {token} {token} default\n" for token in (*tokens, READER)))
        environment |= {
            "RAYHISTORY_AUTH": "token", "RAYHISTORY_ACCESS_FILE": str(access), "RAYHISTORY_SQL": "true",
            "RAYHISTORY_SQL_MEMORY": MEMORY, "RAYHISTORY_SQL_TIMEOUT": TIMEOUT,
        }  # fmt: skip
        with Server(environment) as server:
            print(f"limits of a query: {MEMORY}, {TIMEOUT}, 10,000 rows")
            measure("one visitor", server, ref, {tokens[0]: ORDINARY})
            measure("ordinary queries", server, ref, dict.fromkeys(tokens, ORDINARY))
            hostile = dict(zip(tokens, HOSTILE.values(), strict=False))
            measure("hostile ones among them", server, ref, dict.fromkeys(tokens, ORDINARY) | hostile)


def measure(name: str, server: Server, ref: SessionRef, queries: dict[str, str]) -> None:
    """Send all queries at once, and read pages as another visitor until they are answered."""
    session = server.address.rstrip("/") + ref.url
    with ProcessWatch(server.pid, SQL_PROCESS) as watch, ThreadPoolExecutor(len(queries)) as pool:
        replies = [pool.submit(ask, session, token, query) for token, query in queries.items()]
        pages = list[float]()
        with httpx.Client(base_url=session, headers=bearer(READER), trust_env=False) as reader:
            while not all(reply.done() for reply in replies):
                start_time = time.perf_counter()
                uncached = f"job_id!=x{time.monotonic_ns()}"
                reader.get("api/history/rows/tasks", params={"where": uncached}).raise_for_status()
                pages.append(time.perf_counter() - start_time)
                time.sleep(0.02)
    done = [reply.result() for reply in replies]
    statuses = Counter(reply.status for reply in done)
    seconds = sorted(reply.seconds for reply in done)
    print(f"{name}: {len(done)} visitors, {dict(statuses)}")
    print(f"  answers: median {statistics.median(seconds):.1f} s, last {seconds[-1]:.1f} s")
    print(f"  processes: {watch.most_children} at once, {watch.most_memory_of_a_child >> 20} MB the largest, ", end="")
    print(f"{watch.most_memory >> 20} MB with the server")
    print(f"  pages of others: median {statistics.median(pages) * 1000:.0f} ms, ", end="")
    print(f"slowest {max(pages) * 1000:.0f} ms", flush=True)


def ask(session: str, token: str, query: str) -> Reply:
    start_time = time.perf_counter()
    response = httpx.post(
        f"{session}api/history/sql", json={"query": query}, headers=bearer(token), timeout=600, trust_env=False
    )
    return Reply(response.status_code, time.perf_counter() - start_time)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


if __name__ == "__main__":
    main()
