"""Time SQL over many sessions: `python benchmarks/sql.py [TASKS] [--sessions N]`, as whole commands.

All sessions are copies of one generated session. They are indexed before any query is timed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from generate import generate

QUERIES = {
    "counts by state": "select state, count(*) from tasks group by all",
    "by cluster, name and error": "select cluster, name, error_type, count(*), avg(end_time_ms - start_time_ms) "
    "from tasks group by all order by all",
    "slowest of each session": "select cluster, name, max(end_time_ms - start_time_ms) as ms from tasks "
    "group by cluster, name qualify row_number() over (partition by cluster order by ms desc) = 1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time SQL over many sessions.")
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        store = Path(directory) / "store"
        copy_session(store, generate(store, arguments.tasks).cluster, arguments.sessions)
        environment = os.environ | {"LOCAL_STORAGE_DIR": str(store), "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}
        print(f"indexing {arguments.sessions} sessions: {timed(environment, 'index'):.1f} s")
        for name, query in QUERIES.items():
            times = sorted(timed(environment, "sql", "--all", "--csv", query) for _ in range(5))
            print(f"{name:<28} {times[2] * 1000:6.0f} ms (median of 5), {times[-1] * 1000:.0f} ms max")


def copy_session(store: Path, cluster: str, sessions: int) -> None:
    """Hard-link all files of the session under new cluster names."""
    files = [path for path in store.rglob("*") if path.is_file()]
    for number in range(1, sessions):
        for path in files:
            copy = Path(str(path).replace(cluster, f"{cluster}-{number}"))
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, copy)


def timed(environment: dict[str, str], *argv: str) -> float:
    command: list[str | Path] = [Path(sys.executable).with_name("rayhistory"), *argv]
    start_time = time.monotonic()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - start_time


if __name__ == "__main__":
    main()
