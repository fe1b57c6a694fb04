"""Search in generated logs: with and without the index, against ripgrep on the unpacked files, in the same run.

    python benchmarks/search.py [--megabytes 1000] [--ids] [--s3] [--no-scans]

Logs are those of workers, raylets and drivers. With --ids, each line has a random id: the worst case for an index.
After 64 MB, lines repeat in another order, so the index of much larger logs is smaller than that of real ones. The
store is a directory, or with --s3 SeaweedFS on the same machine. Cold searches have empty caches of packs and of the
index, but the files may be in the system's cache.
"""

import argparse
import asyncio
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import msgspec
import zstandard

from rayhistory.logs.source import PackLogs
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_reader import PackCache
from rayhistory.search.index_builder import build_shards, new_units
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_index import SearchIndex, ShardCache, ShardFile
from rayhistory.search.search_product import keep_freed_memory
from rayhistory.search.search_query import SearchQuery
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import Store
from rayhistory.storage.local import LocalStore
from support.archived_sessions import bucket
from support.store_servers.seaweed import seaweedfs

REF = SessionRef("default", "bench", "session_2026-11-15_19-18-08_055078_15551")
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
NEEDLE = "quokka_7431"
QUERIES = {
    "rare word": SearchQuery(NEEDLE),
    "part of a rare word": SearchQuery("uokka_74"),
    "nowhere": SearchQuery("wombat"),
    "common word, first page": SearchQuery("worker"),
    "regex with a literal": SearchQuery(r"quokka_[0-9]+ found", regex=True),
}
SCANS = {
    "regex without a literal": SearchQuery(r"[0-9]{11}[g-z]", regex=True, case=True),
    "regex of words": SearchQuery(r"\b[A-Z]{12}\b", regex=True, case=True),
    "regex of whole lines": SearchQuery(r"^\S+ [0-9]+$", regex=True, case=True),
    "regex, case ignored": SearchQuery(r"[a-z]{4} [0-9]{6}[a-z]", regex=True),
    "regex that ripgrep finds by its last byte": SearchQuery(r"[a-z]{3}[0-9]{7}[x-z]", regex=True, case=True),
    "word, case ignored": SearchQuery("wombat"),
}
_DISTINCT_BYTES = 64 << 20
_VERBS = ("load", "merge", "train", "fetch", "store", "spill", "plan", "step")
_ENDINGS = ("ing", "ed", "er", "_batch", "_shard", "_model", "_epoch", "_queue", "_object", "_actor")
WORDS = [f"{verb}{ending}" for verb in _VERBS for ending in _ENDINGS]


def lines(seed: int, *, ids: bool) -> Iterator[bytes]:
    choose = random.Random(seed)
    workers = [choose.randbytes(28).hex() for _ in range(50)]
    moment = 1_794_770_288.0
    while True:
        moment += choose.random() / 50
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment)) + f",{int(moment * 1000) % 1000:03d}"
        kind = choose.random()
        words = " ".join(choose.choices(WORDS, k=choose.randint(3, 12)))
        tail = f" id={choose.randbytes(16).hex()}" if ids else ""
        if kind < 0.5:
            place, duration = f"{words.split()[0]}.py:{choose.randint(1, 900)}", choose.random() * 900
            text = f"{stamp}\tINFO {place} -- {words} took {duration:.2f} ms{tail}"
        elif kind < 0.9:
            worker = choose.choice(workers) if choose.random() < 0.3 else str(choose.randint(1, 99999))
            place = f"node_manager.cc:{choose.randint(1, 3000)}"
            text = f"[{stamp} I {choose.randint(100, 40000)} 101] (raylet) {place}: {words} worker {worker}{tail}"
        else:
            text = (
                f'  File "/home/ray/{words.split()[0]}.py", line {choose.randint(1, 900)}, in {words.split()[-1]}{tail}'
            )
        yield text.encode() + b"\n"


def write_logs(directory: Path, megabytes: int, *, ids: bool) -> int:
    """Write ten files, with one needle in the middle of one of them; return their size."""
    source, block = lines(1, ids=ids), []
    size = 0
    while size < _DISTINCT_BYTES:  # then repeated, because generating is slower than all that is measured
        block.append(next(source))
        size += len(block[-1])
    per_file, total = megabytes * 1_000_000 // 10, 0
    for number in range(10):
        path = directory / f"worker-{number:02d}.out"
        with path.open("wb") as file:
            for round_number in range(-(-per_file // _DISTINCT_BYTES)):
                random.Random(1000 * number + round_number).shuffle(block)
                marker = b"%d" % (number * 1000 + round_number)
                data = b"".join(block).replace(b"took 1", b"took " + marker)
                file.write(data[: data.rfind(b"\n", 0, per_file - file.tell()) + 1])
                if number == 5 and round_number == 0:
                    file.write(f"2026-11-15 19:30:00,000 {NEEDLE} found\n".encode())
        total += path.stat().st_size
    return total


async def pack(directory: Path, store: Store, layout: Layout) -> None:
    from rayhistory.collector.logs.pack_series import PackSeries  # noqa: PLC0415

    series = PackSeries(directory, PackDirectory())
    while built := series.build(final=True):
        await store.put(f"{layout.node_packs_prefix(REF, NODE)}/{built.name}", built.data)


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def ripgrep_seconds(directory: Path, query: SearchQuery) -> tuple[float, float]:
    """Return how long ripgrep takes, by the clock and on the processor."""
    rg = Path(sys.executable).with_name("rg")
    flags = ["--text", "--count", "--no-ignore", *([] if query.case else ["-i"]), *([] if query.regex else ["-F"])]
    started, cpu = time.perf_counter(), cpu_seconds(resource.RUSAGE_CHILDREN)
    subprocess.run([rg, *flags, query.q, directory], stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started, cpu_seconds(resource.RUSAGE_CHILDREN) - cpu


def zstd_speed(directory: Path) -> float:
    """Return how many bytes of the first file a processor decompresses in a second."""
    path, spent = min(directory.iterdir()), 0.0
    with path.open("rb") as file:
        while data := file.read(512 << 10):
            packed = zstandard.ZstdCompressor(level=1).compress(data)
            started = time.process_time()
            zstandard.ZstdDecompressor().decompress(packed)
            spent += time.process_time() - started
    return path.stat().st_size / spent


def print_memory(phase: str) -> None:
    print(
        f"peak memory after {phase}: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB", flush=True
    )


@contextmanager
def open_store(home: Path, *, s3: bool) -> Iterator[Store]:
    (home / "store").mkdir()
    if not s3:
        yield LocalStore(home / "store")
        return
    with seaweedfs(home / "store") as endpoint:
        location = bucket(endpoint)
        os.environ.update(location.environment)
        yield location.open()


class Bench:
    """Searches in packs and shards that are in a store."""

    def __init__(self, store: Store, layout: Layout, shard_sizes: dict[str, int]) -> None:
        self._store, self._layout, self._shard_sizes = store, layout, shard_sizes
        self._shards = ShardCache()
        self._packs = PackCache()

    def empty_caches(self) -> None:
        self._shards, self._packs = ShardCache(), PackCache()

    async def search(self, query: SearchQuery, *, indexed: bool, everything: bool = False) -> tuple[float, int, Scan]:
        async def read(name: str, start: int, end: int) -> bytes:
            return await self._store.get_range(name, start, end)

        shards = [ShardFile(name, size, name) for name, size in self._shard_sizes.items()]
        index = SearchIndex(shards, read, self._shards) if indexed else None
        scanner, logs = Scanner(), PackLogs(self._store, self._layout, REF, self._packs)
        query = msgspec.structs.replace(query, order="oldest", limit=1000 if everything else 100)
        started, hits = time.perf_counter(), 0
        scan = Scan(scanner, logs, query, unit_index=index)
        async for found in scan.lines():
            hits += len(found)
        seconds = time.perf_counter() - started
        scanner.close()
        return seconds, hits, scan


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--ids", action="store_true")
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--no-scans", action="store_true", help="measure only searches with the index")
    parser.add_argument("--directory", default=None, help="where to put the generated logs")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="bench-search-", dir=arguments.directory))
    try:
        with open_store(home, s3=arguments.s3) as store:
            await run(home, store, arguments)
    finally:
        shutil.rmtree(home)


async def run(home: Path, store: Store, arguments: argparse.Namespace) -> None:
    raw, layout = home / "logs", Layout("")
    raw.mkdir()
    (home / "index").mkdir()
    print(f"load average {os.getloadavg()[0]:.1f}")
    with ProcessPoolExecutor(1, get_context("spawn")) as process:  # its memory does not count
        size = process.submit(write_logs, raw, arguments.megabytes, ids=arguments.ids).result()
    await pack(raw, store, layout)
    print_memory("packing")
    bench = Bench(store, layout, await build(store, layout, raw, home / "index", size))
    print_memory("building")
    await search_index(bench)
    print_memory("searches with the index")
    if not arguments.no_scans:
        await scan(bench, raw, size)
        print_memory("scans")


async def build(store: Store, layout: Layout, raw: Path, index: Path, size: int) -> dict[str, int]:
    """Build the index and put it into the store. Return the sizes of its shards."""
    logs = PackLogs(store, layout, REF)
    keep_freed_memory()
    started, clock = cpu_seconds(), time.perf_counter()
    files = await build_shards(logs, await new_units(logs, []), index, prefix="1")
    seconds, clock, zstd = cpu_seconds() - started, time.perf_counter() - clock, zstd_speed(raw)
    sizes = {f"shards/{name}": path.stat().st_size for name, path in files.items()}
    index_size = sum(sizes.values())
    print(f"logs {size / 1e6:,.0f} MB, index {index_size / 1e6:,.1f} MB = {100 * index_size / size:.2f} %")
    print(
        f"build {size / seconds / 1e6:,.0f} MB per second of one core, {size / seconds / zstd:.2f} of zstd -d; "
        f"{size / clock / 1e6:,.0f} MB/s on all cores, {size / clock / zstd:.2f} of zstd -d on one"
    )
    for name, path in files.items():
        await store.put(f"shards/{name}", path)
    return sizes


async def search_index(bench: Bench) -> None:
    for name, query in QUERIES.items():
        bench.empty_caches()
        cpu = cpu_seconds()
        cold, hits, done = await bench.search(query, indexed=True)
        cold_cpu, cpu = cpu_seconds() - cpu, cpu_seconds()
        warm, _, _ = await bench.search(query, indexed=True)
        print(
            f"{name}: cold {cold * 1000:,.0f} ms (CPU {cold_cpu * 1000:,.0f}), warm {warm * 1000:,.0f} ms "
            f"(CPU {(cpu_seconds() - cpu) * 1000:,.0f}), {hits} hits, {done.scanned_bytes / 1e6:,.0f} MB read"
        )


async def scan(bench: Bench, raw: Path, size: int) -> None:
    for name, query in SCANS.items():
        ripgrep, ripgrep_cpu = ripgrep_seconds(raw, query)
        cpu = cpu_seconds()
        seconds, hits, _ = await bench.search(query, indexed=False, everything=True)
        cpu = cpu_seconds() - cpu
        print(
            f"scan, {name}: {size / seconds / 1e6:,.0f} MB/s = {ripgrep / seconds:.2f} of ripgrep's "
            f"{size / ripgrep / 1e6:,.0f} MB/s; per second of one core {size / cpu / 1e6:,.0f} MB = "
            f"{ripgrep_cpu / cpu:.2f} of ripgrep's; {hits} hits",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
