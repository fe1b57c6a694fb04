"""Time and memory of folding sessions of growing size, in processes of its own as the server does it.

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

from rayhistory.index.fold import FoldJob, FoldReport
from rayhistory.index.manifest import Closing
from rayhistory.layout import Layout
from rayhistory.settings import SERVER, resolve


class Fold(NamedTuple):
    tasks: int
    events: int
    raw_mb: float
    seconds: float
    cpu: float
    index_mb: float
    peak_mb: float
    """Of all its processes together, without what they share with files."""
    stolen: float
    """By the host: the share of the cores that was wanted meanwhile, and not there."""

    @property
    def speed(self) -> float:
        return self.raw_mb / self.seconds

    def row(self) -> list[str]:
        return [
            f"{self.tasks:,}", f"{self.events:,}", f"{self.raw_mb:.0f}", f"{self.seconds:.2f}", f"{self.cpu:.2f}",
            f"{self.speed:.0f}", f"{self.index_mb:.1f}", f"{self.index_mb / self.raw_mb:.1%}", f"{self.peak_mb:.0f}",
            f"{self.stolen:.0%}",
        ]  # fmt: skip


HEADS = ["tasks", "events", "raw MB", "seconds", "CPU s", "MB/s", "index MB", "of raw", "peak MB", "stolen"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fold generated sessions.")
    parser.add_argument("tasks", nargs="*", type=int, default=[1_000, 10_000, 50_000, 100_000])
    parser.add_argument("--plain", action="store_true", help="events that are not compressed")
    parser.add_argument("--memory", default="1Gi", help="memory for the fold (default: 1Gi)")
    parser.add_argument("--store", type=Path, help="keep the sessions there, and use them again")
    arguments = parser.parse_args()
    print(" ".join(f"{head:>10}" for head in HEADS))
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        place = arguments.store or Path(directory)
        for tasks in arguments.tasks:
            row = measure(place, tasks, arguments.memory, compressed=not arguments.plain).row()
            print(" ".join(f"{value:>10}" for value in row), flush=True)


def measure(place: Path, tasks: int, memory: str = "1Gi", *, compressed: bool = True) -> Fold:
    """Folds the session from nothing; it is generated when it is not there."""
    ref = session_ref(tasks)
    place = place / ("gzip" if compressed else "plain")
    if not (place / Layout().metadata_key(ref)).exists():
        generate(place, tasks, compressed=compressed)
    shutil.rmtree(place / Layout().index_prefix(ref), ignore_errors=True)
    events = list((place / Layout().history_prefix(ref)).rglob("*.jsonl*"))
    raw = sum(_raw_size(path) for path in events)
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(place), "RAYHISTORY_FOLD_MEMORY": memory})
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-scratch-") as scratch:
        job = msgspec.json.encode(FoldJob(msgspec.to_builtins(settings), ref, Closing(0, clean=True), scratch))
        before, cpu, began = stolen(), _cpu_of_children(), time.monotonic()
        done, peak = asyncio.run(_fold(job))
        seconds, cpu = time.monotonic() - began, _cpu_of_children() - cpu
        share = (stolen() - before) / seconds / (os.cpu_count() or 1)
    assert done.manifest
    return Fold(tasks, done.manifest.events, raw / 1e6, seconds, cpu, done.manifest.size / 1e6, peak / 1e6, share)


async def _fold(job: bytes) -> tuple[FoldReport, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rayhistory.index.fold", stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 22
    )
    peak = _Peak(process.pid)
    output, _ = await process.communicate(job)
    assert process.returncode == 0
    return msgspec.json.decode(output.splitlines()[-1], type=FoldReport), peak.stop()


class _Peak(threading.Thread):
    """The most memory that a process and those below it have at once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._most = 0
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(0.05):
            self._most = max(self._most, sum(own_memory(pid) for pid in process_tree(self._pid)))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self._most


def process_tree(pid: int) -> list[int]:
    """The process, and all below it."""
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += process_tree(int(child))
    except OSError:
        pass
    return found


def own_memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def _raw_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path) as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
