"""Measure shipping and reading of logs: `python benchmarks/logs.py`, with files and a store on disk.

speed       throughput from file to store per core
idle        CPU share for 2,000 files of which 50 grow, with a flush every 5 s
puts        objects per flush with those files
reads       range reads for the last 1,000 lines of a large log, without caches
"""

import argparse
import asyncio
import random
import resource
import shutil
import tempfile
import time
from multiprocessing import Process
from pathlib import Path

from rayhistory.collector.logs.pack_shipper import PackShipper
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.telemetry import Telemetry
from rayhistory.logs.source import PackLogs, find_file, start_of_last_lines
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore

REF = SessionRef("default", "bench", "session_2026-01-01_00-00-00_000000_1")
NODE = "ab" * 28


class CountingStore(LocalStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.puts = self.put_bytes = self.reads = self.read_bytes = self.lists = 0

    async def put(self, key: str, data: bytes | Path) -> None:
        self.puts += 1
        await super().put(key, data)
        self.put_bytes += (await self.head(key)).size

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        self.reads += 1
        self.read_bytes += len(data)
        return data


def log_text(megabytes: int) -> bytes:
    rng = random.Random(1)
    words = [f"{rng.choice('abcdefgh')}{number:x}" for number in range(500)]
    lines = []
    size = number = 0
    while size < megabytes << 20:
        number += 1
        when = f"2026-01-01 00:{number // 60000 % 60:02}:{number // 1000 % 60:02},{number % 1000:03}"
        line = (
            f"[{when} I {rng.randrange(99999)} {rng.randrange(99999)}] (raylet) "
            f"node_manager.cc:{rng.randrange(3000)}: "
            f"{' '.join(rng.choices(words, k=12))} {rng.getrandbits(64):016x}\n"
        ).encode()
        lines.append(line)
        size += len(line)
    return b"".join(lines)


def write(path: Path, megabytes: int) -> None:
    """Write a log file. Runs in a subprocess, so that the measured memory is that of shipping."""
    block = log_text(64)
    with path.open("wb") as file:
        for _ in range(max(1, megabytes // 64)):
            file.write(block)


def shipper(home: Path, store: CountingStore) -> PackShipper:
    prefix = Layout().node_packs_prefix(REF, NODE)
    starts = SeriesStarts(PrivateDirectory(home / "spool"))
    return PackShipper(home / "logs", store, lambda: prefix, Telemetry(), starts=starts, interval=5)


async def speed(home: Path, megabytes: int) -> str:
    (home / "logs").mkdir()
    writer = Process(target=write, args=(home / "logs" / "raylet.out", megabytes))
    writer.start()
    writer.join()
    size = (home / "logs" / "raylet.out").stat().st_size
    store = CountingStore(home / "store")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start_time, cpu = time.monotonic(), time.process_time()
    await shipper(home, store).finish()
    wall, cpu = time.monotonic() - start_time, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{size / 1e6 / cpu:.0f} MB/s per core ({size / 1e6 / wall:.0f} MB/s elapsed), {size / 1e6:.0f} MB in "
        f"{store.puts} packs, {size / store.put_bytes:.1f}x smaller, peak RSS {peak:.0f} MiB (before: {before:.0f})"
    )


async def idle(home: Path, files: int, growing: int, flushes: int) -> tuple[str, str]:
    logs = home / "logs"
    logs.mkdir()
    for number in range(files):
        (logs / f"worker-{number:056x}-01000000-{number}.out").write_bytes(b"started\n" * 20)
    paths = sorted(logs.iterdir())[:growing]
    store = CountingStore(home / "store")
    shipping = shipper(home, store)
    await shipping.flush()
    before, cpu = store.puts, 0.0
    sent = store.put_bytes
    for number in range(flushes):
        for path in paths:
            with path.open("ab") as file:
                file.write(b"step finished, number %d\n" % number * 20)
        start_time = time.process_time()
        await shipping.flush()
        cpu += time.process_time() - start_time
    percent = 100 * cpu / flushes / 5
    return (
        f"{percent:.2f} % of a core ({1000 * cpu / flushes:.1f} ms per flush)",
        f"{(store.puts - before) / flushes:g} per flush, {(store.put_bytes - sent) / flushes / 1000:.1f} kB each",
    )


async def reads(home: Path, megabytes: int) -> str:
    store = CountingStore(home / "store")
    logs = PackLogs(store, Layout(), REF)
    start_time = time.monotonic()
    file = await find_file(logs, NODE, "raylet.out")
    start = await start_of_last_lines(logs, NODE, file.path, file.size, 1000)
    content = await logs.read(NODE, file.path, start, file.size)
    assert content.count(b"\n") == 1000
    return (
        f"{store.reads} range reads, {store.read_bytes / 1000:.0f} kB, {1000 * (time.monotonic() - start_time):.0f} ms "
        f"for the last 1,000 lines of {file.size / 1e6:,.0f} MB"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--flushes", type=int, default=200)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rayhistory-bench-"))
    try:
        (home / "a").mkdir()
        (home / "b").mkdir()
        rows = [("file to store", await speed(home / "a", arguments.megabytes))]
        rows.append(("tail of a large log", await reads(home / "a", arguments.megabytes)))
        cost, puts = await idle(home / "b", 2000, 50, arguments.flushes)
        rows += [("2,000 files, 50 growing", cost), ("PUTs", puts)]
        for name, value in rows:
            print(f"{name:<26}{value}")
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
