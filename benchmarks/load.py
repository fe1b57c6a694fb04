"""The server under load: visitors on many sessions, cold and warm, while folds go on and replicas are killed.

python benchmarks/load.py [--minutes 30] [--sessions 12] [--tasks 2000] [--giant 300000] [--visitors 12] [--memory 512]

Two replicas serve one store. Sessions of which nobody has an index yet are added all the time. It prints figures, and
fails when something is not as promised: an answer other than a good one or 503 with Retry-After, a serving process
or a fold above its memory, growth over time, descriptors or threads that are not given back, small sessions that are
slowed down more than twice by a giant one, or two replicas that answer differently.
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
from fold import own_memory, process_tree
from generate import SESSION, generate, session_ref

from rayhistory.layout import Layout, SessionRef

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
GIANT_PAGES = (*PAGES, "api/v0/tasks?detail=1&limit=10000", "api/v0/tasks/summarize?summary_by=lineage")
_MOST_CALLS = 600
_LISTED_AFTER = 6
_LEAST_MS = 25.0
"""Below this, twice as long is noise."""
_KEPT_ALIVE = 6.0
"""Seconds for which connections to a replica that was killed may still be in the visitors' pool."""
_FOLD_MIB = 512
_FOLD_ROOM = 1.5


class Replica:
    """A server in a process of its own; its folds are children, and not counted with it."""

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
        """On the port that it had before, if it had one."""
        port = self.address.rpartition(":")[2].rstrip("/") or "0"
        already = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from rayhistory.server.main import main; main()", f"--port={port}",
                 "--host=127.0.0.1", "--expensive-calls=0"],
                env=self._environment, stderr=log,
            )  # fmt: skip
        self.restarts += 1
        while self._process.poll() is None:
            for line in self._log.read_bytes()[already:].splitlines():
                if b'"address"' in line:
                    self.address = str(json.loads(line)["address"])
                    return
            time.sleep(0.05)
        raise SystemExit(f"a replica did not start: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()

    @property
    def tracebacks(self) -> int:
        return self._log.read_text(errors="replace").count("Traceback (most recent call last)")

    def usage(self) -> dict[str, float]:
        """Memory in MiB; of the folds that are going on, the largest, with all its processes."""
        assert self._process
        folds = [process_tree(pid) for pid in process_tree(self._process.pid)[1:]]
        place = Path(f"/proc/{self._process.pid}")
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        kb = {name: int(status[name].split()[0]) for name in ("VmRSS", "VmHWM")}
        return {
            "rss": kb["VmRSS"] / 1024,
            "peak": kb["VmHWM"] / 1024,
            "descriptors": len(list((place / "fd").iterdir())),
            "threads": int(status["Threads"]),
            "fold": max((sum(map(own_memory, fold)) / 2**20 for fold in folds), default=0.0),
        }


class Load:
    def __init__(self, arguments: argparse.Namespace, place: Path, small: SessionRef, replicas: list[Replica]) -> None:
        self.minutes, self.memory = arguments.minutes, arguments.memory
        self.small = [_copy(place, n, small) for n in range(arguments.sessions)]
        self.giant = session_ref(arguments.giant)
        self.statuses: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.usage: list[dict[str, float]] = []
        self._place, self._first, self._replicas = place, small, replicas
        self._visitors = arguments.visitors
        self._times: dict[str, list[float]] = {}
        self._new = self._giants = 0
        self._down: set[int] = set()

    async def ask(self, http: httpx.AsyncClient, replica: int, ref: SessionRef, page: str, phase: str) -> bytes | None:
        """None when there is no answer yet, or the replica is being killed."""
        began = time.perf_counter()
        try:
            answer = await http.get(f"{self._replicas[replica].address.rstrip('/')}{ref.url}{page}")
        except httpx.TransportError as error:
            if replica in self._down:
                self.statuses["connection to a replica that was killed"] += 1
            else:
                self.breaches.append(f"{ref.cluster} {page}: {error!r}")
            return None
        self._times.setdefault(phase, []).append(time.perf_counter() - began)
        self.statuses[str(answer.status_code)] += 1
        if answer.status_code == 503 and "retry-after" in answer.headers:
            return None
        if answer.status_code != 200:
            self.breaches.append(f"{ref.cluster} {page}: {answer.status_code} {answer.text[:200]}")
            return None
        return answer.content

    async def _answered(self, http: httpx.AsyncClient, replica: int, ref: SessionRef, page: str, phase: str) -> bytes:
        """The answer, after as many calls as it takes."""
        for _ in range(_MOST_CALLS):
            answer = await self.ask(http, replica, ref, page, phase)
            if answer is not None:
                return answer
            await asyncio.sleep(0.5)
        raise SystemExit(f"{ref.cluster} {page} was never answered: {self.breaches[:3]}")

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:
            await self._watching(self._warm(http))
            share = self.minutes * 60
            await self._visit(http, "idle", share * 0.15, busy=False)
            idle = self._p99("idle")
            await self._visit(http, "beside the giant", share * 0.25, busy=True)
            beside = self._p99("beside the giant")
            if beside > max(2 * idle, _LEAST_MS):
                self.breaches.append(f"small sessions: p99 {beside:.0f} ms beside the giant, {idle:.0f} ms without")
            await self._visit(http, "all at once", share * 0.6, busy=True, cold=True)
            await self._agree(http)

    async def _warm(self, http: httpx.AsyncClient) -> None:
        """Every session is folded once, whoever is first; then every page has been seen."""
        for ref in (*self.small, self.giant):
            for replica in range(len(self._replicas)):
                await self._answered(http, replica, ref, PAGES[0], "cold")
        for ref in (*self.small, self.giant):
            for page in PAGES:
                await asyncio.gather(*(self.ask(http, n, ref, page, "cold") for n in range(len(self._replicas))))

    async def _visit(
        self, http: httpx.AsyncClient, phase: str, seconds: float, *, busy: bool, cold: bool = False
    ) -> None:
        """`busy`: others look at the giant, and open more like it; `cold`: sessions appear, and replicas are killed."""
        end = time.monotonic() + seconds
        work = [self._visitor(http, number, phase, end) for number in range(self._visitors)]
        if busy:
            work += [self._giant_visitor(http, number, end) for number in range(2)]
            work += [self._giant_opener(http, end)]
        if cold:
            work += [self._newcomer(http, end), self._killer(end)]
        await asyncio.gather(self._watch(end), *work)

    async def _visitor(self, http: httpx.AsyncClient, number: int, phase: str, end: float) -> None:
        dice = random.Random(f"{phase} {number}")
        while time.monotonic() < end:
            ref, page = dice.choice(self.small), dice.choice(PAGES)
            await self.ask(http, number % len(self._replicas), ref, page, phase)
            await asyncio.sleep(dice.uniform(0.2, 0.6))

    async def _giant_visitor(self, http: httpx.AsyncClient, number: int, end: float) -> None:
        dice = random.Random(number)
        while time.monotonic() < end:
            await self.ask(http, number % len(self._replicas), self.giant, dice.choice(GIANT_PAGES), "giant")
            await asyncio.sleep(dice.uniform(0.5, 1.5))

    async def _giant_opener(self, http: httpx.AsyncClient, end: float) -> None:
        """Opens giants that have no index, one after the other, so that one is folded nearly all the time."""
        following = None
        while time.monotonic() < end:
            ref, following = following, _copy(self._place, self._giants, self.giant)
            self._giants += 1
            opening = [self._answered(http, 0, ref, PAGES[0], "giant, cold")] if ref else []
            await asyncio.gather(asyncio.sleep(2 * _LISTED_AFTER), *opening)

    async def _newcomer(self, http: httpx.AsyncClient, end: float) -> None:
        """Opens sessions that have no index, again and again: folds go on. A session is listed some seconds later."""
        made: list[SessionRef] = []
        while time.monotonic() < end:
            made.append(_copy(self._place, 1000 + len(made), self._first))
            if len(made) > _LISTED_AFTER:
                self._new += 1
                ref = made[-_LISTED_AFTER - 1]
                await self.ask(http, self._new % len(self._replicas), ref, PAGES[0], "cold")
            await asyncio.sleep(2)

    async def _killer(self, end: float) -> None:
        """Kills the second replica in the middle of requests, a few times; it is there again at once."""
        pause = max(10.0, (end - time.monotonic()) / 4)
        while time.monotonic() + pause < end:
            await asyncio.sleep(pause)
            self._down.add(1)
            self._replicas[1].kill()
            await asyncio.to_thread(self._replicas[1].start)
            await asyncio.sleep(_KEPT_ALIVE)
            self._down.discard(1)

    async def _watch(self, end: float) -> None:
        while time.monotonic() < end:
            self.usage.append(self._replicas[0].usage())
            await asyncio.sleep(1)

    async def _watching(self, work: Coroutine[None, None, None]) -> None:
        """The giant is folded before anybody visits: that is looked at too."""
        watching = asyncio.create_task(self._watch(float("inf")))
        await work
        watching.cancel()

    async def _agree(self, http: httpx.AsyncClient) -> None:
        """Every page of every session, from both."""
        for ref in (*self.small, self.giant):
            for page in GIANT_PAGES if ref == self.giant else PAGES:
                answers = [await self._answered(http, n, ref, page, "compared") for n in range(len(self._replicas))]
                if len(set(answers)) > 1:
                    self.breaches.append(f"{ref.cluster} {page}: the replicas differ")

    def _p99(self, phase: str) -> float:
        found = sorted(self._times.get(phase, [0.0]))
        return found[max(0, round(0.99 * len(found)) - 1)] * 1000

    def report(self) -> None:
        for phase, found in self._times.items():
            print(f"{phase:<17} {len(found):>7} requests   p50 {statistics.median(found) * 1000:>6.0f} ms   "
                  f"p99 {self._p99(phase):>6.0f} ms")  # fmt: skip
        print("answers:", ", ".join(f"{status}: {number}" for status, number in sorted(self.statuses.items())))
        print(f"meanwhile {self._new} new sessions and {self._giants} new giants were opened, "
              f"and {self._replicas[1].restarts} times a replica killed")  # fmt: skip
        self._check_growth()
        if found := sum(replica.tracebacks for replica in self._replicas):
            self.breaches.append(f"{found} tracebacks in the logs of the replicas")

    def _check_growth(self) -> None:
        """The last third against the third before it: what grows without end still grows there."""
        third = len(self.usage) // 3
        before, after = self.usage[third : 2 * third], self.usage[2 * third :]
        for name, room in (("rss", 48.0), ("descriptors", 20.0), ("threads", 8.0)):
            one, other = (statistics.median(sample[name] for sample in part) for part in (before, after))
            print(f"{name:<12} {one:6.0f} → {other:6.0f}")
            if other > one * 1.15 + room:
                self.breaches.append(f"{name} grew from {one:.0f} to {other:.0f}")
        peak = max(sample["peak"] for sample in self.usage)
        print(f"memory of the serving process: {peak:.0f} MiB at most, {self.memory} allowed")
        if peak > self.memory:
            self.breaches.append(f"{peak:.0f} MiB of memory, {self.memory} are allowed")
        fold = max(sample["fold"] for sample in self.usage)
        print(f"memory of a fold: {fold:.0f} MiB at most, {_FOLD_MIB} given")
        if fold > _FOLD_MIB * _FOLD_ROOM:
            self.breaches.append(f"a fold took {fold:.0f} MiB of memory, {_FOLD_MIB} were given")


def _copy(place: Path, number: int, first: SessionRef) -> SessionRef:
    """The small session under another name."""
    layout = Layout()
    ref = SessionRef("default", f"{first.cluster}-{number}", SESSION)
    source = place / layout.history_prefix(first)
    for path in source.rglob("*.jsonl.gz"):
        copy = place / layout.history_prefix(ref) / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            os.link(path, copy)
    marker = place / layout.metadata_key(ref)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return ref


def main() -> None:
    parser = argparse.ArgumentParser(description="The server under load; fails on what was promised and is not held.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sessions", type=int, default=12, help="small ones, which are there from the start")
    parser.add_argument("--tasks", type=int, default=2_000, help="of a small session")
    parser.add_argument("--giant", type=int, default=300_000, help="tasks of the giant session")
    parser.add_argument("--visitors", type=int, default=12)
    parser.add_argument("--memory", type=int, default=512, help="MiB that a serving process may use")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and the replicas with it
    with tempfile.TemporaryDirectory(prefix="rayhistory-load-") as directory, ExitStack() as running:
        place = Path(directory) / "store"
        place.mkdir()
        small = generate(place, arguments.tasks)
        generate(place, arguments.giant)
        environment = os.environ | {
            "LOCAL_STORAGE_DIR": str(place),
            "RAYHISTORY_INDEX_AHEAD": "false",
            "RAYHISTORY_FOLD_MEMORY": f"{_FOLD_MIB}Mi",
        }
        replicas = [running.enter_context(Replica(environment, Path(directory), number)) for number in range(2)]
        load = Load(arguments, place, small, replicas)
        asyncio.run(load.run())
        load.report()
    for breach in load.breaches[:20]:
        print("BREACH:", breach, file=sys.stderr)
    if load.breaches:
        raise SystemExit(f"{len(load.breaches)} breaches of what is promised")
    print("all held")


if __name__ == "__main__":
    main()
