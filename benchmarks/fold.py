"""Measure time and memory of folds, in subprocesses as the server runs them.

python benchmarks/fold.py [TASKS …] [--plain] [--memory 1Gi] [--store DIRECTORY]
"""

import argparse
import asyncio
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from collector import stolen
from generate import generate, session_ref

from rayhistory.index.fold.fold_process import FoldJob, FoldReport
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from rayhistory.settings import SERVER, resolve


class Fold(NamedTuple):
    tasks: int
    events: int
    raw_mb: float
    seconds: float
    cpu: float
    index_mb: float
    peak_mb: float
    """Anonymous memory of all fold processes together."""
    stolen: float
    """Share of all cores that the host stole during the fold."""

    @property
    def speed(self) -> float:
        return self.raw_mb / self.seconds

    def row(self) -> list[str]:
        return [
            f"{self.tasks:,}", f"{self.events:,}", f"{self.raw_mb:.0f}", f"{self.seconds:.2f}", f"{self.cpu:.2f}",
            f"{self.speed:.0f}", f"{self.index_mb:.1f}", f"{self.index_mb / self.raw_mb:.1%}", f"{self.peak_mb:.0f}",
            f"{self.stolen:.0%}",
        ]  # fmt: skip


COLUMNS = ["tasks", "events", "raw MB", "seconds", "CPU s", "MB/s", "index MB", "of raw", "peak MB", "stolen"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure folds of generated sessions.")
    parser.add_argument("tasks", nargs="*", type=int, default=[1_000, 10_000, 50_000, 100_000])
    parser.add_argument("--plain", action="store_true", help="store events uncompressed")
    parser.add_argument("--memory", default="1Gi", help="memory of the fold (default: 1Gi)")
    parser.add_argument("--store", type=Path, help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    print(" ".join(f"{column:>10}" for column in COLUMNS))
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        root = arguments.store or Path(directory)
        for tasks in arguments.tasks:
            row = measure(root, tasks, arguments.memory, compressed=not arguments.plain).row()
            print(" ".join(f"{value:>10}" for value in row), flush=True)


def measure(root: Path, tasks: int, memory: str = "1Gi", *, compressed: bool = True) -> Fold:
    """Fold a session without an index. Generates the session if it does not exist."""
    ref = session_ref(tasks)
    root = root / ("gzip" if compressed else "plain")
    if not (root / Layout().metadata_key(ref)).exists():
        generate(root, tasks, compressed=compressed)
    shutil.rmtree(root / Layout().index_prefix(ref), ignore_errors=True)
    events = list((root / Layout().history_prefix(ref)).rglob("*.jsonl*"))
    raw = sum(_raw_size(path) for path in events)
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(root), "RAYHISTORY_INDEX_MEMORY": memory})
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-scratch-") as scratch:
        job = msgspec.json.encode(FoldJob(msgspec.to_builtins(settings), ref, Closing(0, clean=True), scratch))
        before, cpu, start_time = stolen(), _child_cpu_seconds(), time.monotonic()
        done, peak = asyncio.run(_fold(job))
        seconds, cpu = time.monotonic() - start_time, _child_cpu_seconds() - cpu
        share = (stolen() - before) / seconds / (os.cpu_count() or 1)
    assert done.manifest
    return Fold(tasks, done.manifest.events, raw / 1e6, seconds, cpu, done.manifest.size / 1e6, peak / 1e6, share)


async def _fold(job: bytes) -> tuple[FoldReport, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rayhistory.index.fold.fold_process",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=1 << 22,
    )
    peak = _PeakMemory(process.pid)
    output, _ = await process.communicate(job)
    assert process.returncode == 0
    reports = [msgspec.json.decode(line, type=FoldReport) for line in output.splitlines()]
    return next(report for report in reports if report.manifest), peak.stop()


class _PeakMemory(threading.Thread):
    """Samples the peak memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._max_bytes = 0
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(0.05):
            self._max_bytes = max(self._max_bytes, sum(anonymous_memory(pid) for pid in process_tree(self._pid)))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self._max_bytes


def process_tree(pid: int) -> list[int]:
    """Return the pids of a process and its descendants."""
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += process_tree(int(child))
    except OSError:
        pass
    return found


def anonymous_memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def _raw_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path) as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def _child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
