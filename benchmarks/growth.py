"""Measure what it costs to extend the index of a growing session, against one fold of everything.

python benchmarks/growth.py [--steps 100] [--tasks 2000] [--against SRC] [--plot FILE]

Each step adds one object. Some events of a task come a step later, and some twice, as from several nodes. `--against`
names the `src` directory of another version, which extends an index of its own beside, step by step. The store is
SeaweedFS behind a relay that counts requests. `--plot` writes seconds, bytes and requests of each step as SVG.
"""

import argparse
import asyncio
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from delaying_relay import RunningRelay, delaying_relay
from generate import BEGIN, SESSION, TASKS_PER_FILE, generate_events
from growth_plot import Series, growth_plot
from isal import igzip

from rayhistory.index.fold.fold_process import FoldJob
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import SERVER, Settings, resolve
from rayhistory.storage import open_store
from support.store_servers.seaweed import KEY, SECRET, seaweedfs

REF = SessionRef("default", "growing", SESSION)
NODE = "ab" * 28
LATE_SHARE = 0.02
"""Events of a step that arrive with the next one."""
REPEATED_SHARE = 0.005
HERE = Path(__file__).parents[1] / "src"
BUCKET = "benchmark"


class Step(NamedTuple):
    raw_mb: float
    cpu: float
    seconds: float
    written: int
    requests: int

    @property
    def cpu_per_mb(self) -> float:
        return self.cpu / self.raw_mb


class Version:
    """One version of the code, with a directory of its own in the store."""

    def __init__(self, name: str, src: Path, endpoint: str, relay: RunningRelay, memory: str) -> None:
        self.name = name
        self.steps: list[Step] = []
        self._src = src
        self._relay = relay
        self._settings = _settings(name, endpoint, memory)
        self._layout = Layout(self._settings.storage_root_dir)
        self._known: set[str] = set()

    def extend(self, number: int, data: bytes, closing: Closing | None) -> Step:
        """Add an object and fold."""
        asyncio.run(self._put(_object_key(self._layout, number), igzip.compress(data, 1)))
        self._relay.requests()
        start = time.monotonic()
        cpu = self._fold(closing)
        seconds = time.monotonic() - start
        step = Step(len(data) / 1e6, cpu, seconds, asyncio.run(self._new_bytes()), self._relay.requests())
        self.steps.append(step)
        return step

    def fold_afresh(self, closing: Closing | None) -> tuple[float, int]:
        """Fold everything at once; return CPU seconds and the size of the index."""
        cpu = self._fold(closing, fresh=True)
        return cpu, asyncio.run(self._new_bytes())

    def _fold(self, closing: Closing | None, *, fresh: bool = False) -> float:
        before = _child_cpu_seconds()
        fold(self._settings, self._src, closing, fresh=fresh, environment={"S3_ENDPOINT": self._relay.url})
        return _child_cpu_seconds() - before

    async def _put(self, key: str, data: bytes) -> None:
        await open_store(self._settings, writable=True).put(key, data)

    async def _new_bytes(self) -> int:
        """Return the bytes that appeared below the index since the last call. A fold deletes none of its own files."""
        store = open_store(self._settings)
        found = {info.key: info.size async for info in store.list_all(self._layout.index_prefix(REF))}
        new, self._known = found.keys() - self._known, set(found)
        return sum(found[key] for key in new)


def _settings(directory: str, endpoint: str, memory: str) -> Settings:
    """Return settings of a store in SeaweedFS. Clients read its address and keys from the environment."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "S3_REGION": "us-east-1",
        "S3_ENDPOINT": endpoint, "S3_BUCKET": BUCKET,
    }  # fmt: skip
    place = {"RAYHISTORY_STORE": f"s3://{BUCKET}/{directory}", "RAYHISTORY_INDEX_MEMORY": memory}
    return resolve(SERVER, {}, {**os.environ, **place})[0]


def grow(root: Path, tasks: int, folds: int) -> SessionRef:
    """Write a session that was indexed while it grew: some events of a task come after the fold of the others."""
    steps = max(tasks // TASKS_PER_FILE, folds)
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(root), "RAYHISTORY_INDEX_MEMORY": "1Gi"})
    ends = {steps * fold // folds - 1 for fold in range(1, folds + 1)}
    for number, data in enumerate(_objects(steps, tasks // steps)):
        add_object(root, number, data)
        if number in ends:
            fold(settings, HERE, None)
    marker = root / Layout().metadata_key(REF)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return REF


def add_object(root: Path, number: int, data: bytes) -> None:
    path = root / _object_key(Layout(), number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(igzip.compress(data, 1))


def _object_key(layout: Layout, number: int) -> str:
    return layout.events_key(REF, NODE, "job_events/01000000", BEGIN + number, compressed=True)


def fold(
    settings: Settings,
    src: Path,
    closing: Closing | None,
    *,
    fresh: bool = False,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Fold the session with one version of the code, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-growth-") as scratch:
        job = FoldJob(msgspec.to_builtins(settings), REF, closing, scratch, fresh)
        subprocess.run(
            [sys.executable, "-m", "rayhistory.index.fold.fold_process"],
            input=msgspec.json.encode(job),
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(src)} | dict(environment or {}),
            check=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure extensions of a growing index.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=2_000, help="tasks per step")
    parser.add_argument("--memory", default="1Gi")
    parser.add_argument("--against", type=Path, help="the src directory of another version")
    parser.add_argument("--plot", type=Path, help="the SVG file to write")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rayhistory-growth-")))
        endpoint = stack.enter_context(seaweedfs(directory))
        relay = stack.enter_context(delaying_relay(endpoint, 0.0))
        versions = [Version("this", HERE, endpoint, relay, arguments.memory)]
        if arguments.against:
            versions.append(Version("other", arguments.against, endpoint, relay, arguments.memory))
        columns = "".join(
            f" {v.name + ' CPU s':>12} {'seconds':>8} {'written MB':>11} {'requests':>9}" for v in versions
        )
        print(f"{'step':>5} {'raw MB':>8}{columns}")
        for number, data in enumerate(_objects(arguments.steps, arguments.tasks)):
            done = [version.extend(number, data, None) for version in versions]
            cells = "".join(f" {s.cpu:12.2f} {s.seconds:8.2f} {s.written / 1e6:11.2f} {s.requests:9}" for s in done)
            print(f"{number + 1:5} {len(data) / 1e6:8.1f}{cells}", flush=True)
        if arguments.plot:
            arguments.plot.write_text(_plot(versions[0].steps))
        for version in versions:
            _summarize(version)


def _plot(steps: list[Step]) -> str:
    sizes = [sum(step.raw_mb for step in steps[: number + 1]) for number in range(len(steps))]
    return growth_plot(
        sizes,
        "MB of events in the session",
        [
            Series("CPU seconds per extension", [step.cpu for step in steps]),
            Series("MB written per extension", [step.written / 1e6 for step in steps]),
            Series("requests per extension", [float(step.requests) for step in steps]),
        ],
    )


def _objects(steps: int, tasks: int) -> Iterator[bytes]:
    """Yield the lines of each step's object."""
    rng = random.Random(1)
    late: list[str] = []
    for number in range(steps):
        lines = generate_events(number * tasks, tasks)
        kept = rng.sample(range(len(lines)), int(len(lines) * LATE_SHARE))
        following = [lines[position] for position in kept] + rng.sample(lines, int(len(lines) * REPEATED_SHARE))
        for position in sorted(kept, reverse=True):
            del lines[position]
        yield "".join(late + lines).encode()
        late = following


def _summarize(version: Version) -> None:
    third = len(version.steps) // 3 or 1
    early = statistics.mean(step.cpu_per_mb for step in version.steps[:third])
    late = statistics.mean(step.cpu_per_mb for step in version.steps[-third:])
    cpu, written = sum(step.cpu for step in version.steps), sum(step.written for step in version.steps)
    fold_cpu, size = version.fold_afresh(None)
    print(
        f"{version.name}: {len(version.steps)} extensions {cpu:.1f} CPU s, one fold {fold_cpu:.1f} CPU s; "
        f"written {written / 1e6:.1f} MB, index {size / 1e6:.1f} MB: write amplification {written / size:.1f}; "
        f"CPU per new MB, last third / first third: {late / early:.2f}"
    )


def _child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
