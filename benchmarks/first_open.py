"""Measure the first open of sessions: from a directory, from S3, and from S3 with latency.

python benchmarks/first_open.py [--against CHECKOUT] [--only NAME …] [--rounds 3] [--large]

Each open runs in a process of its own, as a server that has just started: it has a builder, and neither an index nor
cached files. With `--against`, the source of another checkout is measured in turn with this one, in the same run. The
store is SeaweedFS on the same machine, so it shares the cores with the fold.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from delaying_relay import RunningRelay, delaying_relay
from fold import process_tree
from generate import generate

from rayhistory.index.query.query import Query
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import SERVER, Settings, resolve
from rayhistory.storage import Store, open_store
from support.store_servers.seaweed import KEY, SECRET, seaweedfs

LATENCY_MS = 30.0
SESSION = "session_2026-11-15_19-18-08_055078_15551"
NEW_OBJECTS, TASKS_PER_NEW_OBJECT = 100, 39
_WARM_UP_S = 5.0
"""A server has usually run for a while when a session is opened."""


class Case(NamedTuple):
    """One session, and where it is stored."""

    name: str
    place: str
    tasks: int
    objects: int
    extend: bool = False
    """Measure the extension by new objects, not the first open."""
    large: bool = False

    @property
    def ref(self) -> SessionRef:
        return SessionRef("default", f"open-{self.tasks}-{self.objects}", SESSION)


DIRECTORY, S3, S3_DELAYED = "directory", "S3", f"S3 + {LATENCY_MS:.0f} ms"
CASES = [
    Case("dir-1k", DIRECTORY, 1_000, 1),
    Case("dir-50k", DIRECTORY, 50_000, 4),
    Case("dir-50k-many", DIRECTORY, 50_000, 1_282),
    Case("dir-1m", DIRECTORY, 1_000_000, 80, large=True),
    Case("s3-50k", S3, 50_000, 1_282),
    Case("s3-1k-delayed", S3_DELAYED, 1_000, 500),
    Case("s3-50k-delayed", S3_DELAYED, 50_000, 1_282),
    Case("s3-extend-delayed", S3_DELAYED, 50_000, 1_282, extend=True),
    Case("s3-10k-objects-delayed", S3_DELAYED, 50_000, 10_000),
]


STORE_VARIABLES = ("STORAGE_BACKEND", "LOCAL_STORAGE_DIR", "RAYHISTORY_STORE", "S3_ENDPOINT", "S3_BUCKET")


class Opened(NamedTuple):
    seconds: float
    """Until the index is open."""
    page: float
    """From then to the first page of tasks."""
    cpu: float
    """CPU seconds of the process and its children, without the store."""
    requests: int = 0
    """To the store with latency."""


class Stores(NamedTuple):
    root: Path
    endpoint: str
    relay: RunningRelay | None

    def environment(self, place: str) -> dict[str, str]:
        if place == DIRECTORY:
            return {"STORAGE_BACKEND": "local", "LOCAL_STORAGE_DIR": str(self.root)}
        endpoint = self.relay.url if place == S3_DELAYED and self.relay else self.endpoint
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "S3_REGION": "us-east-1"}
        return {"RAYHISTORY_STORE": "s3://benchmark", "S3_ENDPOINT": endpoint, "S3_BUCKET": "benchmark", **keys}


@contextmanager
def running_stores(root: Path, cases: list[Case]) -> Iterator[Stores]:
    if all(case.place == DIRECTORY for case in cases):
        yield Stores(root, "", None)
        return
    with (
        tempfile.TemporaryDirectory(dir=root, prefix="seaweed-") as directory,
        seaweedfs(Path(directory)) as endpoint,
        delaying_relay(endpoint, LATENCY_MS) as relay,
    ):
        yield Stores(root, endpoint, relay)


def settings_from(environment: dict[str, str], cache: Path) -> Settings:
    """Return the settings of a store, whose credentials clients read from the environment of this process."""
    if environment:
        for name in STORE_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(environment)
    return resolve(SERVER, {}, {**os.environ, "RAYHISTORY_CACHE_DIR": str(cache), "RAYHISTORY_INDEX_MEMORY": "1Gi"})[0]


async def _put_all(store: Store, root: Path, paths: list[Path]) -> None:
    limit = asyncio.Semaphore(16)

    async def put(path: Path) -> None:
        async with limit:
            await store.put(str(path.relative_to(root)), path)

    await asyncio.gather(*map(put, paths))


def prepare(stores: Stores, case: Case) -> None:
    """Write the session of a case to its store, once."""
    history = stores.root / Layout().history_prefix(case.ref)
    if not history.exists():
        generate(stores.root, case.tasks, ref=case.ref, objects=case.objects)
    if case.place != DIRECTORY:
        environment = stores.environment(S3)
        settings = settings_from(environment, stores.root / "unused")
        store = open_store(settings, writable=True)
        asyncio.run(_put_all(store, stores.root, [path for path in history.rglob("*") if path.is_file()]))


async def _remove_index(store: Store, ref: SessionRef) -> None:
    for key in [info.key async for info in store.list_all(Layout().index_prefix(ref))]:
        await store.delete(key)


async def _remove_new_objects(store: Store, root: Path, ref: SessionRef) -> None:
    for path in new_objects(root, ref):
        await store.delete(str(path.relative_to(root / "new")))


def new_objects(root: Path, ref: SessionRef) -> list[Path]:
    """Return the objects by which a session is extended. They are generated below `new`."""
    history = root / "new" / Layout().history_prefix(ref)
    if not history.exists():
        tasks = NEW_OBJECTS * TASKS_PER_NEW_OBJECT
        generate(root / "new", tasks, ref=ref, objects=NEW_OBJECTS, first=10_000_000)
    return sorted(path for path in history.rglob("*") if path.is_file())


def measure(stores: Stores, case: Case, checkout: Path) -> Opened:
    """Open the session in a new process that runs the source of a checkout."""
    direct = settings_from(stores.environment(S3 if case.place != DIRECTORY else DIRECTORY), stores.root / "unused")
    asyncio.run(_remove_index(open_store(direct, writable=True), case.ref))
    if case.extend:
        asyncio.run(_remove_new_objects(open_store(direct, writable=True), stores.root, case.ref))
    with tempfile.TemporaryDirectory(dir=stores.root, prefix="cache-") as cache:
        inherited = {name: value for name, value in os.environ.items() if name not in STORE_VARIABLES}
        environment = {**inherited, **stores.environment(case.place), "PYTHONPATH": str(checkout / "src")}
        command = [sys.executable, __file__, "--child", case.name, "--root", str(stores.root), "--cache", cache]
        if stores.relay:
            stores.relay.requests()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        opened = Opened(**json.loads(done.stdout.splitlines()[-1]))
        return opened._replace(requests=stores.relay.requests() if stores.relay and case.place == S3_DELAYED else 0)


async def open_once(case: Case, root: Path, settings: Settings) -> Opened:
    store = open_store(settings)
    builder = IndexBuilder(settings, store, Layout())
    closing = Closing(0, clean=True)
    if warm_up := getattr(builder, "warm_up", None):
        warm_up()
    if case.extend:
        await builder.open(case.ref, closing, timeout_s=600)
        await _put_all(open_store(settings, writable=True), root / "new", new_objects(root, case.ref))
        builder.forget(case.ref)
    await asyncio.sleep(_WARM_UP_S)
    cpu, start = tree_cpu_seconds(os.getpid()), time.monotonic()
    index = await builder.open(case.ref, closing, timeout_s=600, extend=case.extend)
    opened = time.monotonic()
    rows = await index.rows(Query("tasks", limit=100))
    page = time.monotonic()
    assert len(rows) == 100
    expected = case.tasks + (NEW_OBJECTS * TASKS_PER_NEW_OBJECT if case.extend else 0)
    assert index.manifest.counts.tasks == expected * 1.04, index.manifest.counts
    cpu = tree_cpu_seconds(os.getpid()) - cpu
    await builder.close()
    await store.close()
    return Opened(opened - start, page - opened, cpu)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, of its descendants, and of those that have ended."""
    ticks = 0
    for each in process_tree(pid):
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def in_child(arguments: argparse.Namespace) -> None:
    case = next(case for case in CASES if case.name == arguments.child)
    settings = settings_from({}, Path(arguments.cache))
    print(json.dumps(asyncio.run(open_once(case, arguments.root, settings))._asdict()))


COLUMNS = [
    "", "store", "tasks", "objects", "seconds", "first page", "CPU s", "requests", "before", "CPU s before", "ratio"
]  # fmt: skip


def row(case: Case, opened: list[Opened], before: list[Opened]) -> list[str]:
    seconds, page, cpu = (statistics.median(values) for values in list(zip(*opened, strict=True))[:3])
    earlier = [f"{statistics.median(values):.2f}" for values in list(zip(*before, strict=True))[:3]] or ["", "", ""]
    return [
        case.name, case.place, f"{case.tasks:,}", f"{case.objects:,}" + (f" + {NEW_OBJECTS}" if case.extend else ""),
        f"{seconds:.2f}", f"{page:.3f}", f"{cpu:.2f}", f"{opened[0].requests or ''}",
        earlier[0], earlier[2], f"{float(earlier[0]) / seconds:.1f}" if before else "",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure first opens.")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--only", nargs="+", default=[], help=f"of {', '.join(case.name for case in CASES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="also the session of a million tasks")
    parser.add_argument("--root", type=Path, help="directory for generated sessions, reused by later runs")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        in_child(arguments)
        return
    cases = [case for case in CASES if case.name in arguments.only or (not arguments.only and not case.large)]
    cases += [case for case in CASES if case.large and arguments.large and case not in cases]
    root = arguments.root or Path(tempfile.mkdtemp(prefix="rayhistory-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parents[1]
    print("| " + " | ".join(COLUMNS) + " |\n|---|---|" + "---:|" * (len(COLUMNS) - 2))
    try:
        with running_stores(root, cases) as stores:
            for case in cases:
                prepare(stores, case)
                opened, before = [], []
                for _ in range(arguments.rounds):
                    opened.append(measure(stores, case, here))
                    if arguments.against:
                        before.append(measure(stores, case, arguments.against.resolve()))
                print("| " + " | ".join(row(case, opened, before)) + " |", flush=True)
    finally:
        if not arguments.root:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
