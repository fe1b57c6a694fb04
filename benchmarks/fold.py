"""Time and memory of folding sessions of growing size, in a process of its own as the server does it.

python benchmarks/fold.py [TASKS …] [--plain] [--memory 1Gi]
"""

import argparse
import asyncio
import gzip
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from generate import generate

from rayhistory.index.fold import FoldJob, FoldReport
from rayhistory.index.manifest import Closing
from rayhistory.settings import SERVER, resolve


def main() -> None:
    parser = argparse.ArgumentParser(description="Fold generated sessions.")
    parser.add_argument("tasks", nargs="*", type=int, default=[1_000, 10_000, 50_000, 100_000])
    parser.add_argument("--plain", action="store_true", help="events that are not compressed")
    parser.add_argument("--memory", default="1Gi", help="memory for the fold (default: 1Gi)")
    arguments = parser.parse_args()
    heads = {"tasks": 10, "events": 10, "raw MB": 8, "seconds": 8, "CPU s": 7, "MB/s": 7, "index MB": 9, "of raw": 7,
             "peak MB": 8}  # fmt: skip
    print(" ".join(f"{head:>{width}}" for head, width in heads.items()))
    for tasks in arguments.tasks:
        with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
            print(line(Path(directory), tasks, arguments.memory, compressed=not arguments.plain), flush=True)


def line(directory: Path, tasks: int, memory: str, *, compressed: bool) -> str:
    ref = generate(directory, tasks, compressed=compressed)
    raw = sum(_raw_size(path) for path in directory.rglob("*.jsonl*"))
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(directory), "RAYHISTORY_FOLD_MEMORY": memory})
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-scratch-") as scratch:
        job = msgspec.json.encode(FoldJob(msgspec.to_builtins(settings), ref, Closing(0, clean=True), scratch))
        cpu, began = _cpu_of_children(), time.monotonic()
        done = asyncio.run(_fold(job))
        seconds, cpu = time.monotonic() - began, _cpu_of_children() - cpu
    assert done.manifest
    index = done.manifest.size
    return (
        f"{tasks:>10,} {done.manifest.events:>10,} {raw / 1e6:>8.0f} {seconds:>8.2f} {cpu:>7.2f} "
        f"{raw / 1e6 / seconds:>7.0f} {index / 1e6:>9.1f} {index / raw:>7.1%} {_peak_of_children() / 1e6:>8.0f}"
    )


async def _fold(job: bytes) -> FoldReport:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rayhistory.index.fold", stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 22
    )
    output, _ = await process.communicate(job)
    assert process.returncode == 0
    return msgspec.json.decode(output.splitlines()[-1], type=FoldReport)


def _raw_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path) as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _peak_of_children() -> int:
    """The largest process that we have waited for, so far: sizes grow, so it is that of the last one."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


if __name__ == "__main__":
    main()
