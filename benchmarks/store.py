"""Compare this project's store with plain obstore, against SeaweedFS on the same machine.

    .venv/bin/python benchmarks/store.py [--operations 400] [--keys 10000]

Client and server share the cores, so the client's CPU time is compared, in alternating subprocesses.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import obstore
from obstore.store import S3Store

from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
from rayhistory.storage.cloud import client_options
from support.store_servers.seaweed import KEY, SECRET, seaweedfs

SMALL = os.urandom(4096)
CONCURRENCY = 8
ROUNDS = 5
LAYOUT = Layout()
SESSION = "session_2026-11-15_19-18-08_055078_00000"
LARGE = 256 * 2**20


class PlainObstore:
    """obstore with the client options of this project; its defaults are slower."""

    def __init__(self, endpoint: str) -> None:
        self._obstore = obstore
        keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1", "endpoint": endpoint}
        self._store = S3Store("benchmark", config=keys, client_options=client_options(allow_http=True))  # type: ignore[arg-type]

    async def put(self, key: str, data: bytes) -> None:
        await self._obstore.put_async(self._store, key, data)

    async def get(self, key: str) -> bytes:
        return bytes(await (await self._obstore.get_async(self._store, key)).bytes_async())

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return bytes(await self._obstore.get_range_async(self._store, key, start=start, end=end))

    async def list_all(self, prefix: str) -> Any:
        async for page in self._obstore.list(self._store, prefix, chunk_size=1000):
            for info in page:
                yield info


def project_store(endpoint: str) -> Any:
    os.environ.update(S3_ENDPOINT=endpoint, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, S3_REGION="us-east-1")
    return open_store(resolve(SERVER, {"setting_store": "s3://benchmark"})[0], writable=True)


async def timed(times: int, operation: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    """Return CPU seconds and elapsed seconds per operation, with several operations at a time."""

    async def some(worker: int) -> None:
        for number in range(worker, times, CONCURRENCY):
            await operation(number)

    cpu, start_time = time.process_time(), time.perf_counter()
    await asyncio.gather(*(some(worker) for worker in range(CONCURRENCY)))
    return {"cpu": (time.process_time() - cpu) / times, "time": (time.perf_counter() - start_time) / times}


async def operations(store: Any, times: int) -> dict[str, dict[str, float]]:
    async def listing(number: int) -> None:
        _ = [info async for info in store.list_all("small")]

    await timed(16, lambda number: store.put(f"small/{number}", SMALL))  # warms up connections and server caches
    return {
        "put 4 KB": await timed(times, lambda number: store.put(f"small/{number}", SMALL)),
        "get 4 KB": await timed(times, lambda number: store.get(f"small/{number}")),
        "get range": await timed(times, lambda number: store.get_range(f"small/{number}", 1000, 2000)),
        f"list {times}": await timed(16, listing),
    }


async def fill(store: Any, keys: int) -> None:
    await timed(keys, lambda number: store.put(f"many/{number // 10:04d}/{number % 10}", b"x"))


async def listing(store: Any) -> dict[str, float]:
    cpu, start_time = time.process_time(), time.perf_counter()
    found = [info async for info in store.list_all("many")]
    return {"keys": len(found), "cpu": time.process_time() - cpu, "time": time.perf_counter() - start_time}


async def fill_sessions(store: Any, number: int) -> None:
    """Write the objects that list an ended session: KubeRay's metadata key, and our records."""
    refs = [SessionRef("default", f"cluster-{i % 100}", f"{SESSION[:-5]}{i:05d}") for i in range(number)]
    kinds = (LAYOUT.metadata_key, LAYOUT.start_key, LAYOUT.end_key)
    keys = [key(ref) for ref in refs for key in kinds]
    await timed(len(keys), lambda i: store.put(keys[i], b"{}"))


async def sessions(store: Any) -> dict[str, float]:
    catalog = SessionCatalog(store, LAYOUT, 120)
    start_time = time.perf_counter()
    found = len(await catalog.entries())
    cold = time.perf_counter() - start_time
    await asyncio.sleep(3)  # so that the catalog refreshes in the background
    start_time = time.perf_counter()
    await catalog.entries()
    warm = time.perf_counter() - start_time
    await asyncio.sleep(2 * cold)
    return {"sessions": found, "cold": cold, "warm": warm}


async def upload(store: Any) -> dict[str, float]:
    with tempfile.NamedTemporaryFile() as file:
        block = os.urandom(2**20)
        for _ in range(LARGE // len(block)):
            file.write(block)
        file.flush()
        cpu, start_time = time.process_time(), time.perf_counter()
        await store.put("large", Path(file.name))
        seconds = time.perf_counter() - start_time
        assert (await store.head("large")).size == LARGE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"time": seconds, "cpu": time.process_time() - cpu, "peak MiB": peak}


def child(endpoint: str, work: str, number: int, *, bare: bool) -> Any:
    """Run one measurement in a subprocess and return its result."""
    command = [sys.executable, __file__, "--child", work, "--endpoint", endpoint, "--number", str(number)]
    done = subprocess.run([*command, "--bare"] if bare else command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def in_child(arguments: argparse.Namespace) -> None:
    store = PlainObstore(arguments.endpoint) if arguments.bare else project_store(arguments.endpoint)
    works: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "operations": lambda: operations(store, arguments.number),
        "fill": lambda: fill(store, arguments.number),
        "listing": lambda: listing(store),
        "upload": lambda: upload(store),
        "fill sessions": lambda: fill_sessions(store, arguments.number),
        "sessions": lambda: sessions(store),
    }
    print(json.dumps(asyncio.run(works[arguments.child]())))


def compare(endpoint: str, times: int) -> None:
    runs: dict[bool, list[Any]] = {True: [], False: []}
    for number in range(ROUNDS):
        for bare, found in list(runs.items())[:: 1 if number % 2 else -1]:
            found.append(child(endpoint, "operations", times, bare=bare))
    print(f"{'':12} {'obstore':>12} {'rayhistory':>12}   CPU per operation, best of {ROUNDS}")
    for name in runs[True][0]:
        plain, project = (min(run[name]["cpu"] for run in runs[kind]) * 1e3 for kind in (True, False))
        print(f"{name:12} {plain:9.3f} ms {project:9.3f} ms   {project / plain:.2f}×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=400)
    parser.add_argument("--keys", type=int, default=10_000)
    for name in ("--child", "--endpoint"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        in_child(arguments)
        return
    with tempfile.TemporaryDirectory() as directory, seaweedfs(Path(directory)) as endpoint:
        child(endpoint, "fill", 16, bare=False)  # creates the bucket
        compare(endpoint, arguments.operations)
        large = child(endpoint, "upload", 0, bare=False)
        rate, cpu = LARGE / 2**20 / large["time"], large["cpu"] / (LARGE / 2**20) * 1e3
        print(f"upload of 256 MB: {rate:.0f} MB/s, {cpu:.1f} ms CPU per MB, peak RSS {large['peak MiB']:.0f} MiB")
        child(endpoint, "fill", arguments.keys, bare=False)
        for bare in (True, False):
            found = child(endpoint, "listing", 0, bare=bare)
            label = "obstore" if bare else "rayhistory"
            print(f"listing {found['keys']} keys, {label}: {found['time']:.2f} s, {found['cpu']:.2f} s CPU")
        child(endpoint, "fill sessions", arguments.keys, bare=False)
        found = child(endpoint, "sessions", 0, bare=False)
        print(f"{found['sessions']} sessions: {found['cold']:.2f} s cold, {found['warm'] * 1e3:.1f} ms warm")


if __name__ == "__main__":
    main()
