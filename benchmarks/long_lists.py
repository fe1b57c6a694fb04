"""Measure the server's memory and its other responses while it lists the event lines of a session.

python benchmarks/long_lists.py [LINES]
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import httpx
from generate import BEGIN, generate
from query import Server

from rayhistory.sessions import Layout, SessionRef

NODE = "a" * 56
REQUESTS = ("events", "events?job_id=01000000", "api/v0/cluster_events?limit=10000&detail=1", "api/history/overview")


def main() -> None:
    parser = argparse.ArgumentParser(description="List many event lines, and watch the server meanwhile.")
    parser.add_argument("lines", nargs="?", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        root = Path(directory) / "store"
        ref = generate(root, 1000)
        size = write_event_lines(root, ref, arguments.lines)
        environment = os.environ | {"LOCAL_STORAGE_DIR": str(root), "RAYHISTORY_INDEX_AHEAD": "false",
                                    "RAYHISTORY_CACHE_DIR": f"{directory}/cache"}  # fmt: skip
        with Server(environment) as server:
            server.wait_until_indexed(ref)
            server.time(ref, "api/v0/tasks?limit=100")
            before = server.peak_mb()
            print(f"{arguments.lines:,} event lines, {size >> 20} MiB; server {before:.0f} MB")
            print(f"{'request':<44} {'time':>9} {'memory':>9} {'/livez':>9}   (ms, MB more, slowest in ms)")
            for path in REQUESTS:
                with LivenessProbe(server.address) as probe:
                    seconds = server.time(ref, path)
                grown = server.peak_mb() - before
                print(f"{path:<44} {seconds * 1000:>9.0f} {grown:>9.0f} {probe.slowest * 1000:>9.0f}", flush=True)


def write_event_lines(root: Path, ref: SessionRef, lines: int) -> int:
    """Write an event log file of Ray, and return its size."""
    path = root / Layout().logs_prefix(ref, NODE) / "events" / "event_GCS.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number in range(lines):
            event = {
                "event_id": f"{number:036x}", "source_type": "GCS", "host_name": "bench", "pid": "1", "label": "",
                "severity": "INFO", "message": f"node {number} " + "x" * 100, "timestamp": str(BEGIN // 10**9 + number),
                "custom_fields": {"job_id": "01000000"} if number % 2 else {},
            }  # fmt: skip
            file.write(json.dumps(event) + "\n")
    return path.stat().st_size


class LivenessProbe:
    """Requests /livez all the time, and remembers the slowest response."""

    def __init__(self, address: str) -> None:
        self.slowest = 0.0
        self._address = address
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "LivenessProbe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._address, timeout=120, trust_env=False) as http:
            while not self._done.wait(0.01):
                start_time = time.perf_counter()
                http.get("/livez").raise_for_status()
                self.slowest = max(self.slowest, time.perf_counter() - start_time)


if __name__ == "__main__":
    main()
