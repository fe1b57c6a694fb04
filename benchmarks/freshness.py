"""Measure how far the indexes of many running sessions are behind, with one or more servers on one store.

python benchmarks/freshness.py [--sessions 200] [--seconds 180] [--interval 10] [--servers 1,2,4]

Every session stores an object of events per interval. An index is stale since the oldest object that it does not cover
was stored. Servers are real processes that share the work by leases; a fold is done twice if its generation was
published by another server, or if it found nothing new.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

import msgspec

from rayhistory.index.manifest import read_latest_manifest
from rayhistory.sessions import Layout, SessionRef, StartRecord
from rayhistory.storage.local import LocalStore

NODE = "a" * 56
LAYOUT = Layout()
EVENTS_PER_OBJECT = 20
SAMPLE_INTERVAL_S = 2.0
NAMESPACES = 5


class RunningSession:
    """A session that stores new events as a collector would."""

    def __init__(self, number: int) -> None:
        self.ref = SessionRef(
            f"team-{number % NAMESPACES}", f"cluster-{number}", "session_2026-11-18_00-00-00_000000_1"
        )
        self.written: list[float] = []
        """When each object was stored."""

    async def start(self, store: LocalStore) -> None:
        record = StartRecord(self.ref.namespace, self.ref.cluster, self.ref.session, int(time.time() * 1000))
        await store.put(LAYOUT.start_key(self.ref), msgspec.json.encode(record))

    async def grow(self, store: LocalStore) -> None:
        number = len(self.written)
        lines = [json.dumps(_task_event(number * EVENTS_PER_OBJECT + each)) for each in range(EVENTS_PER_OBJECT)]
        key = LAYOUT.events_key(self.ref, NODE, "node_events", time.time_ns(), compressed=False)
        await store.put(LAYOUT.alive_key(self.ref), b"")
        await store.put(key, ("\n".join(lines) + "\n").encode())
        self.written.append(time.time())

    async def staleness(self, store: LocalStore) -> float:
        """Return for how long the index lacks an object."""
        manifest = await read_latest_manifest(store, LAYOUT, self.ref)
        covered = manifest.events // EVENTS_PER_OBJECT if manifest else 0
        return max(0.0, time.time() - self.written[covered]) if covered < len(self.written) else 0.0


def _task_event(number: int) -> dict[str, object]:
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
    return {
        "eventId": f"{number:032x}", "sourceType": "CORE_WORKER", "eventType": "TASK_DEFINITION_EVENT",
        "timestamp": now, "severity": "INFO", "sessionName": "session_2026-11-18_00-00-00_000000_1",
        "taskDefinitionEvent": {
            "taskId": f"{number:040x}01000000", "taskAttempt": 0, "taskType": "NORMAL_TASK", "taskName": "step",
            "jobId": "01000000", "language": "PYTHON",
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--interval", type=float, default=10.0)
    parser.add_argument("--servers", default="1,2,4")
    arguments = parser.parse_args()
    print(f"{arguments.sessions} running sessions, an object each every {arguments.interval:g} s")
    for count in map(int, arguments.servers.split(",")):
        with tempfile.TemporaryDirectory(prefix="rayhistory-freshness-") as directory:
            measure(Path(directory), count, arguments)


def measure(directory: Path, servers: int, arguments: argparse.Namespace) -> None:
    cpu_before = _children_cpu_s()
    logs = [directory / f"server-{number}.log" for number in range(servers)]
    (directory / "store").mkdir()
    with ExitStack() as stack:
        for number, log in enumerate(logs):
            stack.enter_context(_server(directory, number, log))
        staleness = asyncio.run(_observe(directory / "store", arguments))
    folds, twice = _count_folds(logs)
    cuts = statistics.quantiles(staleness, n=100)
    cpu = (_children_cpu_s() - cpu_before) / max(1, folds)
    print(
        f"{servers} servers: staleness median {statistics.median(staleness):.1f} s, p99 {cuts[98]:.1f} s; "
        f"{folds} folds, {twice} done twice, {cpu:.2f} s of CPU per fold",
        flush=True,
    )


class _server:  # noqa: N801 - a context manager
    """A history server with its own cache."""

    def __init__(self, directory: Path, number: int, log: Path) -> None:
        environment = os.environ | {
            "LOCAL_STORAGE_DIR": str(directory / "store"),
            "RAYHISTORY_CACHE_DIR": str(directory / f"cache-{number}"),
        }
        self._log = log.open("wb")
        command: list[str | Path] = [
            Path(sys.executable).with_name("historyserver"),
            "--port",
            "0",
            "--host",
            "127.0.0.1",
        ]
        self._process = subprocess.Popen(command, env=environment, stderr=self._log)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()


async def _observe(directory: Path, arguments: argparse.Namespace) -> list[float]:
    """Let the sessions grow; return samples of their staleness from the second half."""
    store = LocalStore(directory)
    sessions = [RunningSession(number) for number in range(arguments.sessions)]
    for session in sessions:
        await session.start(store)

    async def grow(session: RunningSession, number: int) -> None:
        await asyncio.sleep(arguments.interval * number / len(sessions))
        while True:
            await session.grow(store)
            await asyncio.sleep(arguments.interval)

    growing = [asyncio.create_task(grow(session, number)) for number, session in enumerate(sessions)]
    began, samples = time.monotonic(), []
    while (elapsed := time.monotonic() - began) < arguments.seconds:
        await asyncio.sleep(SAMPLE_INTERVAL_S)
        if elapsed > arguments.seconds / 2:
            samples += [await session.staleness(store) for session in sessions]
    for task in growing:
        task.cancel()
    await asyncio.gather(*growing, return_exceptions=True)
    return samples


def _count_folds(logs: list[Path]) -> tuple[int, int]:
    """Return the number of folds, and of those that did what was done already."""
    published: dict[str, dict[int, int]] = defaultdict(dict)
    generations: Counter[tuple[str, int]] = Counter()
    for log in logs:
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            if entry["event"] == "indexing finished":
                generations[entry["session"], entry["generation"]] += 1
                published[entry["session"]][entry["generation"]] = entry["events"]
    repeated = sum(count - 1 for count in generations.values())
    empty = sum(
        events == by_generation.get(generation - 1)
        for by_generation in published.values()
        for generation, events in by_generation.items()
    )
    return sum(generations.values()), repeated + empty


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
