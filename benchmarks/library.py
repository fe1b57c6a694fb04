"""Time the Python library and the Model Context Protocol on a session of a given size, from a directory.

python benchmarks/library.py [TASKS] [--rounds 5] [--folds 8] [--store DIRECTORY]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from mcp import Client
from query import Server, prepared

import rayhistory
from rayhistory.sessions import SessionRef


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the library.")
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    parser.add_argument("--folds", type=int, default=1, help="times that the session was indexed while it ran")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store, arguments.folds) as (ref, environment):
        os.environ |= environment
        store = environment["LOCAL_STORAGE_DIR"]
        report("connect, first 100 rows", arguments.rounds, lambda: first_rows(store, ref))
        with rayhistory.connect(store) as history:
            session = history.session(ref.path)
            report("all tasks as Arrow", arguments.rounds, session.tasks().to_arrow)
            report("failed tasks as Arrow", arguments.rounds, session.tasks("state = FAILED").to_arrow)
        report_bundle(ref, environment)
        with Server(environment) as server:
            server.wait_until_indexed(ref)
            with rayhistory.connect(server.address) as history:
                report("the same from a server", arguments.rounds, history.session(ref.path).tasks().to_arrow)
            report_visitors(server, ref)
            asyncio.run(time_agent(server.address, ref, arguments.rounds))


def report(name: str, rounds: int, work: Callable[[], object]) -> None:
    """Print the times of some rounds, and the processor time, which does not count waiting for others."""
    times, processor_times = [], []
    for _ in range(rounds + 1):
        start_time, start_cpu = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - start_time)
        processor_times.append(time.process_time() - start_cpu)
    print_times(name, times, f" ({statistics.median(processor_times[1:]) * 1000:.0f} ms of this process)")


def print_times(name: str, times: list[float], more: str = "") -> None:
    first, later = times[0] * 1000, statistics.median(times[1:]) * 1000
    print(f"{name:<28} first {first:>8.0f} ms, then {later:>8.0f} ms{more}", flush=True)


def report_bundle(ref: SessionRef, environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.html"
        command = [str(Path(sys.executable).with_name("rayhistory")), "bundle", ref.path, "-o", str(file)]
        start_time = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start_time
        print(f"{'bundle':<28} {file.stat().st_size / 1e6:.2f} MB in {seconds:.1f} s", flush=True)


def report_visitors(server: Server, ref: SessionRef, visitors: int = 20) -> None:
    """Download all tasks for many visitors at once. The server sends few files at once, and asks others to wait."""

    def download(_: int) -> int:
        with httpx.Client(base_url=server.address.rstrip("/") + ref.url, timeout=300, trust_env=False) as client:
            url = "api/history/rows/tasks.zip?superseded=1"
            while (response := client.get(url)).status_code == 429:
                time.sleep(0.05)
            return len(response.raise_for_status().content)

    before, start_time = server.peak_mb(), time.perf_counter()
    with ThreadPoolExecutor(visitors) as pool:
        megabytes = sum(pool.map(download, range(visitors))) / 1e6
    seconds, grown = time.perf_counter() - start_time, server.peak_mb() - before
    print(f"{f'{visitors} visitors at once':<28} {megabytes:.0f} MB in {seconds:.1f} s, {grown:.0f} MB more memory")


def first_rows(store: str, ref: SessionRef) -> None:
    with rayhistory.connect(store) as history:
        history.session(ref.path).tasks(limit=100).to_list()


async def time_agent(url: str, ref: SessionRef, rounds: int) -> None:
    async with Client(url.rstrip("/") + "/mcp") as client:
        times = []
        for _ in range(rounds + 1):
            start_time = time.perf_counter()
            result = await client.call_tool("diagnose", {"session": ref.path})
            times.append(time.perf_counter() - start_time)
            if result.is_error:
                raise RuntimeError(str(result.content))
        print_times("diagnose over MCP", times)


if __name__ == "__main__":
    main()
