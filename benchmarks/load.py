"""Load test of the server: visitors on many sessions, while sessions are indexed and replicas are killed.

python benchmarks/load.py [--minutes 30] [--sessions 12] [--tasks 2000] [--large 300000] [--visitors 12] [--memory 512]

Two replicas serve one store, and sessions without an index are added continuously. Prints figures, and fails on: a
response other than success or 503 with Retry-After; a server or fold process above its memory limit; memory, file
descriptors or threads that grow over time; small sessions more than twice as slow beside a large one; replicas whose
responses differ.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path

import httpx
from fold import anonymous_memory, process_tree
from generate import SESSION, generate, session_ref

from rayhistory.sessions import Layout, SessionRef

PAGES = (
    "api/jobs/",
    "nodes?view=summary",
    "logical/actors",
    "api/v0/tasks?limit=100",
    "api/v0/tasks/summarize?filter_keys=job_id&filter_predicates=%3D&filter_values=01000000",
    "api/v0/tasks?limit=100&filter_keys=state&filter_predicates=%3D&filter_values=FAILED",
    "api/history/rows/tasks?limit=100&sort=-start_time_ms",
    "api/history/gaps",
)
LARGE_SESSION_PAGES = (*PAGES, "api/v0/tasks?detail=1&limit=10000", "api/v0/tasks/summarize?summary_by=lineage")
_MAX_CALLS = 600
_LISTING_DELAY_SESSIONS = 6
"""A new session is opened after this many others, when it is listed."""
_NOISE_MS = 25.0
"""Below this, a doubled latency is noise."""
_POOL_EXPIRY_S = 6.0
"""Time for which visitors may still have pooled connections to a killed replica."""
_FOLD_MIB = 512
_FOLD_TOLERANCE = 1.5


class Replica:
    """A server process. Its folds are child processes and counted separately."""

    def __init__(self, environment: dict[str, str], directory: Path, number: int) -> None:
        self.address = ""
        self.restarts = -1
        self._environment = environment | {"RAYHISTORY_CACHE_DIR": str(directory / f"cache-{number}")}
        self._log = directory / f"replica-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Replica":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def start(self) -> None:
        """Start the server, on its previous port after a restart."""
        port = self.address.rpartition(":")[2].rstrip("/") or "0"
        log_size = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from rayhistory.server.main import main; main()", f"--port={port}",
                 "--host=127.0.0.1", "--rate-limit=0"],
                env=self._environment, stderr=log,
            )  # fmt: skip
        self.restarts += 1
        while self._process.poll() is None:
            for line in self._log.read_bytes()[log_size:].splitlines():
                if b'"address"' in line:
                    self.address = str(json.loads(line)["address"])
                    return
            time.sleep(0.05)
        raise SystemExit(f"replica did not start: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()

    @property
    def tracebacks(self) -> int:
        return self._log.read_text(errors="replace").count("Traceback (most recent call last)")

    def usage(self) -> dict[str, float]:
        """Return memory in MiB, descriptors and threads; `fold` is the largest running fold with its children."""
        assert self._process
        folds = [process_tree(pid) for pid in process_tree(self._process.pid)[1:]]
        proc = Path(f"/proc/{self._process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        kb = {name: int(status[name].split()[0]) for name in ("VmRSS", "VmHWM")}
        return {
            "rss": kb["VmRSS"] / 1024,
            "peak": kb["VmHWM"] / 1024,
            "descriptors": len(list((proc / "fd").iterdir())),
            "threads": int(status["Threads"]),
            "fold": max((sum(map(anonymous_memory, fold)) / 2**20 for fold in folds), default=0.0),
        }


class Load:
    def __init__(self, arguments: argparse.Namespace, root: Path, small: SessionRef, replicas: list[Replica]) -> None:
        self.minutes, self.memory = arguments.minutes, arguments.memory
        self.small = [_copy(root, n, small) for n in range(arguments.sessions)]
        self.large = session_ref(arguments.large)
        self.statuses: Counter[str] = Counter()
        self.failures: list[str] = []
        self.usage: list[dict[str, float]] = []
        self._root, self._template, self._replicas = root, small, replicas
        self._visitors = arguments.visitors
        self._times: dict[str, list[float]] = {}
        self._new_small = self._new_large = 0
        self._down: set[int] = set()

    async def get(self, http: httpx.AsyncClient, replica: int, ref: SessionRef, page: str, phase: str) -> bytes | None:
        """Return the body; None for a 503, or while the replica is being killed."""
        start_time = time.perf_counter()
        try:
            response = await http.get(f"{self._replicas[replica].address.rstrip('/')}{ref.url}{page}")
        except httpx.TransportError as error:
            if replica in self._down:
                self.statuses["connection to a killed replica"] += 1
            else:
                self.failures.append(f"{ref.cluster} {page}: {error!r}")
            return None
        self._times.setdefault(phase, []).append(time.perf_counter() - start_time)
        self.statuses[str(response.status_code)] += 1
        if response.status_code == 503 and "retry-after" in response.headers:
            return None
        if response.status_code != 200:
            self.failures.append(f"{ref.cluster} {page}: {response.status_code} {response.text[:200]}")
            return None
        return response.content

    async def _get_when_ready(
        self, http: httpx.AsyncClient, replica: int, ref: SessionRef, page: str, phase: str
    ) -> bytes:
        """Repeat a request until it succeeds."""
        for _ in range(_MAX_CALLS):
            response = await self.get(http, replica, ref, page, phase)
            if response is not None:
                return response
            await asyncio.sleep(0.5)
        raise SystemExit(f"{ref.cluster} {page} never succeeded: {self.failures[:3]}")

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:
            await self._while_watching(self._warm_up(http))
            seconds = self.minutes * 60
            await self._visit(http, "idle", seconds * 0.15, with_large=False)
            idle = self._p99("idle")
            await self._visit(http, "with large session", seconds * 0.25, with_large=True)
            loaded = self._p99("with large session")
            if loaded > max(2 * idle, _NOISE_MS):
                self.failures.append(f"small sessions: p99 {loaded:.0f} ms with a large session, {idle:.0f} ms without")
            await self._visit(http, "all at once", seconds * 0.6, with_large=True, with_churn=True)
            await self._compare_replicas(http)

    async def _warm_up(self, http: httpx.AsyncClient) -> None:
        """Index every session, then request every page once."""
        for ref in (*self.small, self.large):
            for replica in range(len(self._replicas)):
                await self._get_when_ready(http, replica, ref, PAGES[0], "cold")
        for ref in (*self.small, self.large):
            for page in PAGES:
                await asyncio.gather(*(self.get(http, n, ref, page, "cold") for n in range(len(self._replicas))))

    async def _visit(
        self, http: httpx.AsyncClient, phase: str, seconds: float, *, with_large: bool, with_churn: bool = False
    ) -> None:
        """Run visitors; optionally with large sessions, and with new sessions and killed replicas."""
        end = time.monotonic() + seconds
        work = [self._visitor(http, number, phase, end) for number in range(self._visitors)]
        if with_large:
            work += [self._large_session_visitor(http, number, end) for number in range(2)]
            work += [self._open_large_sessions(http, end)]
        if with_churn:
            work += [self._open_new_sessions(http, end), self._kill_replicas(end)]
        await asyncio.gather(self._watch(end), *work)

    async def _visitor(self, http: httpx.AsyncClient, number: int, phase: str, end: float) -> None:
        rng = random.Random(f"{phase} {number}")
        while time.monotonic() < end:
            ref, page = rng.choice(self.small), rng.choice(PAGES)
            await self.get(http, number % len(self._replicas), ref, page, phase)
            await asyncio.sleep(rng.uniform(0.2, 0.6))

    async def _large_session_visitor(self, http: httpx.AsyncClient, number: int, end: float) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            await self.get(
                http, number % len(self._replicas), self.large, rng.choice(LARGE_SESSION_PAGES), "large session"
            )
            await asyncio.sleep(rng.uniform(0.5, 1.5))

    async def _open_large_sessions(self, http: httpx.AsyncClient, end: float) -> None:
        """Open large sessions without an index one after the other, so that a large fold runs nearly always."""
        next_ref: SessionRef | None = None
        while time.monotonic() < end:
            ref, next_ref = next_ref, _copy(self._root, self._new_large, self.large)
            self._new_large += 1
            opening = [self._get_when_ready(http, 0, ref, PAGES[0], "large, not indexed")] if ref else []
            await asyncio.gather(asyncio.sleep(2 * _LISTING_DELAY_SESSIONS), *opening)

    async def _open_new_sessions(self, http: httpx.AsyncClient, end: float) -> None:
        """Open new small sessions continuously. A session is listed some seconds after it is written."""
        written: list[SessionRef] = []
        while time.monotonic() < end:
            written.append(_copy(self._root, 1000 + len(written), self._template))
            if len(written) > _LISTING_DELAY_SESSIONS:
                self._new_small += 1
                ref = written[-_LISTING_DELAY_SESSIONS - 1]
                await self.get(http, self._new_small % len(self._replicas), ref, PAGES[0], "cold")
            await asyncio.sleep(2)

    async def _kill_replicas(self, end: float) -> None:
        """Kill the second replica during requests a few times, and restart it."""
        pause = max(10.0, (end - time.monotonic()) / 4)
        while time.monotonic() + pause < end:
            await asyncio.sleep(pause)
            self._down.add(1)
            self._replicas[1].kill()
            await asyncio.to_thread(self._replicas[1].start)
            await asyncio.sleep(_POOL_EXPIRY_S)
            self._down.discard(1)

    async def _watch(self, end: float) -> None:
        while time.monotonic() < end:
            self.usage.append(self._replicas[0].usage())
            await asyncio.sleep(1)

    async def _while_watching(self, work: Coroutine[None, None, None]) -> None:
        """Do the work while resource usage is sampled."""
        watching = asyncio.create_task(self._watch(float("inf")))
        await work
        watching.cancel()

    async def _compare_replicas(self, http: httpx.AsyncClient) -> None:
        """Compare every page of every session between the replicas."""
        for ref in (*self.small, self.large):
            for page in LARGE_SESSION_PAGES if ref == self.large else PAGES:
                responses = [
                    await self._get_when_ready(http, n, ref, page, "comparison") for n in range(len(self._replicas))
                ]
                if len(set(responses)) > 1:
                    self.failures.append(f"{ref.cluster} {page}: the replicas' responses differ")

    def _p99(self, phase: str) -> float:
        found = sorted(self._times.get(phase, [0.0]))
        return found[max(0, round(0.99 * len(found)) - 1)] * 1000

    def report(self) -> None:
        for phase, found in self._times.items():
            print(f"{phase:<19} {len(found):>7} requests   p50 {statistics.median(found) * 1000:>6.0f} ms   "
                  f"p99 {self._p99(phase):>6.0f} ms")  # fmt: skip
        print("responses:", ", ".join(f"{status}: {number}" for status, number in sorted(self.statuses.items())))
        print(f"{self._new_small} small and {self._new_large} large sessions were added, "
              f"a replica was killed {self._replicas[1].restarts} times")  # fmt: skip
        self._check_growth()
        if tracebacks := sum(replica.tracebacks for replica in self._replicas):
            self.failures.append(f"{tracebacks} tracebacks in the logs of the replicas")

    def _check_growth(self) -> None:
        """Compare the last third of the samples with the middle third, to find unbounded growth."""
        third = len(self.usage) // 3
        before, after = self.usage[third : 2 * third], self.usage[2 * third :]
        for name, tolerance in (("rss", 48.0), ("descriptors", 20.0), ("threads", 8.0)):
            earlier, later = (statistics.median(sample[name] for sample in part) for part in (before, after))
            print(f"{name:<12} {earlier:6.0f} → {later:6.0f}")
            if later > earlier * 1.15 + tolerance:
                self.failures.append(f"{name} grew from {earlier:.0f} to {later:.0f}")
        peak = max(sample["peak"] for sample in self.usage)
        print(f"server memory: {peak:.0f} MiB peak, limit {self.memory}")
        if peak > self.memory:
            self.failures.append(f"server memory is {peak:.0f} MiB, limit {self.memory}")
        fold = max(sample["fold"] for sample in self.usage)
        print(f"fold memory: {fold:.0f} MiB peak, setting {_FOLD_MIB}")
        if fold > _FOLD_MIB * _FOLD_TOLERANCE:
            self.failures.append(f"fold memory is {fold:.0f} MiB, setting {_FOLD_MIB}")


def _copy(root: Path, number: int, template: SessionRef) -> SessionRef:
    """Link a session's events under another cluster name."""
    layout = Layout()
    ref = SessionRef("default", f"{template.cluster}-{number}", SESSION)
    source = root / layout.history_prefix(template)
    for path in source.rglob("*.jsonl.gz"):
        copy = root / layout.history_prefix(ref) / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            os.link(path, copy)
    marker = root / layout.metadata_key(ref)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return ref


def main() -> None:
    parser = argparse.ArgumentParser(description="Load test of the server; fails when a guarantee is broken.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sessions", type=int, default=12, help="small sessions at the start")
    parser.add_argument("--tasks", type=int, default=2_000, help="tasks of a small session")
    parser.add_argument("--large", type=int, default=300_000, help="tasks of the large session")
    parser.add_argument("--visitors", type=int, default=12)
    parser.add_argument("--memory", type=int, default=512, help="memory limit of a server process in MiB")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM received"))  # also ends the replicas
    with tempfile.TemporaryDirectory(prefix="rayhistory-load-") as directory, ExitStack() as resources:
        root = Path(directory) / "store"
        root.mkdir()
        small = generate(root, arguments.tasks)
        generate(root, arguments.large)
        environment = os.environ | {
            "LOCAL_STORAGE_DIR": str(root),
            "RAYHISTORY_INDEX_AHEAD": "false",
            "RAYHISTORY_INDEX_MEMORY": f"{_FOLD_MIB}Mi",
        }
        replicas = [resources.enter_context(Replica(environment, Path(directory), number)) for number in range(2)]
        load = Load(arguments, root, small, replicas)
        asyncio.run(load.run())
        load.report()
    for failure in load.failures[:20]:
        print("FAILED:", failure, file=sys.stderr)
    if load.failures:
        raise SystemExit(f"{len(load.failures)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()
