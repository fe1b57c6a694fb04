"""Measure what it costs to extend the index of a growing session, against one fold of everything.

python benchmarks/growth.py [--steps 100] [--tasks 2000] [--against SRC]

Each step adds one object. Some events of a task come a step later, and some twice, as from several nodes. `--against`
names the `src` directory of another version, which extends an index of its own beside, step by step.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from generate import BEGIN, SESSION, TASKS_PER_FILE, generate_events
from isal import igzip

from rayhistory.index.fold.fold_process import FoldJob
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import SERVER, resolve

REF = SessionRef("default", "growing", SESSION)
NODE = "ab" * 28
LATE_SHARE = 0.02
"""Events of a step that arrive with the next one."""
REPEATED_SHARE = 0.005
HERE = Path(__file__).parents[1] / "src"


class Step(NamedTuple):
    raw_mb: float
    cpu: float
    written: int

    @property
    def cpu_per_mb(self) -> float:
        return self.cpu / self.raw_mb


class Version:
    """One version of the code with a store of its own."""

    def __init__(self, name: str, src: Path, root: Path, memory: str) -> None:
        self.name = name
        self.root = root
        self.steps: list[Step] = []
        self._src = src
        self._memory = memory
        self._known: set[Path] = set()

    def extend(self, number: int, data: bytes, closing: Closing | None) -> Step:
        """Add an object and fold."""
        add_object(self.root, number, data)
        step = Step(len(data) / 1e6, self._fold(closing), self._new_bytes())
        self.steps.append(step)
        return step

    def fold_afresh(self, closing: Closing | None) -> tuple[float, int]:
        """Fold everything at once; return CPU seconds and the size of the index."""
        cpu = self._fold(closing, fresh=True)
        return cpu, self._new_bytes()

    def _fold(self, closing: Closing | None, *, fresh: bool = False) -> float:
        before = _child_cpu_seconds()
        fold(self.root, self._src, self._memory, closing, fresh=fresh)
        return _child_cpu_seconds() - before

    def _new_bytes(self) -> int:
        """Return the bytes that appeared below the index since the last call. A fold deletes none of its own files."""
        found = {path for path in (self.root / Layout().index_prefix(REF)).rglob("*") if path.is_file()}
        new, self._known = found - self._known, found
        return sum(path.stat().st_size for path in new)


def grow(root: Path, tasks: int, folds: int) -> SessionRef:
    """Write a session that was indexed while it grew: some events of a task come after the fold of the others."""
    steps = max(tasks // TASKS_PER_FILE, folds)
    ends = {steps * fold // folds - 1 for fold in range(1, folds + 1)}
    for number, data in enumerate(_objects(steps, tasks // steps)):
        add_object(root, number, data)
        if number in ends:
            fold(root, HERE, "1Gi", None)
    marker = root / Layout().metadata_key(REF)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return REF


def add_object(root: Path, number: int, data: bytes) -> None:
    path = root / Layout().events_key(REF, NODE, "job_events/01000000", BEGIN + number, compressed=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(igzip.compress(data, 1))


def fold(root: Path, src: Path, memory: str, closing: Closing | None, *, fresh: bool = False) -> None:
    """Fold the session with one version of the code, in a process of its own."""
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(root), "RAYHISTORY_INDEX_MEMORY": memory})
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        job = FoldJob(msgspec.to_builtins(settings), REF, closing, scratch, fresh)
        subprocess.run(
            [sys.executable, "-m", "rayhistory.index.fold.fold_process"],
            input=msgspec.json.encode(job),
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(src)},
            check=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure extensions of a growing index.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=2_000, help="tasks per step")
    parser.add_argument("--memory", default="1Gi")
    parser.add_argument("--against", type=Path, help="the src directory of another version")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-growth-") as directory:
        versions = [Version("this", HERE, Path(directory, "this"), arguments.memory)]
        if arguments.against:
            versions.append(Version("other", arguments.against, Path(directory, "other"), arguments.memory))
        print(f"{'step':>5} {'raw MB':>8}" + "".join(f" {v.name + ' CPU s':>12} {'written MB':>12}" for v in versions))
        for number, data in enumerate(_objects(arguments.steps, arguments.tasks)):
            done = [version.extend(number, data, None) for version in versions]
            cells = "".join(f" {step.cpu:12.2f} {step.written / 1e6:12.2f}" for step in done)
            print(f"{number + 1:5} {len(data) / 1e6:8.1f}{cells}", flush=True)
        for version in versions:
            _summarize(version)


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
