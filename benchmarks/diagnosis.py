# ruff: noqa: S608
"""Time and memory of a diagnosis: a million tasks with 40,000 failures in 200 fingerprints, and worse.

The tables are those of a recorded session, with its failed and its finished task repeated. The product is built as the
server builds it, in a process with a memory limit.
"""

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from failures.fixtures import unpack
from rayhistory.diagnosis.diagnosis_product import FILE, NAME
from rayhistory.index.manifest import Manifest
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from support.index_builder import settings_for
from support.server_process import running_server

_CASE = "exceptions-task_raises"
_VISITS, _VISITORS = 20, 20


def multiply(path: Path, *, tasks: int, failures: int, fingerprints: int, message_bytes: int) -> None:
    """Rewrite a table of tasks."""
    message = (
        f"'User exception:\n' || repeat('  padding of a long traceback\n', {message_bytes // 30}) || "
        f"'  File \"/app/module' || (i % {fingerprints}) || '.py\", line 13, in parse\n    raise ValueError(number)\n"
        "ValueError: cannot parse record ' || i"
    )
    with duckdb.connect() as database:
        database.execute("SET memory_limit = '4GB'; SET preserve_insertion_order = false")
        database.execute(f"CREATE TABLE one AS SELECT * FROM read_parquet('{path}') WHERE name = 'parse'")
        columns = [row[0] for row in database.execute("DESCRIBE one").fetchall()]
        replaced = "lpad(to_hex(i), 48, '0') AS task_id"
        failed = f"{replaced}, {message} AS error_message" if "error_message" in columns else replaced
        rows = (
            f"SELECT * EXCLUDE (i) REPLACE ({failed}) FROM (FROM one WHERE state = 'FAILED' LIMIT 1), "
            f"range({failures}) AS r(i) UNION ALL SELECT * EXCLUDE (i) REPLACE ({replaced}) FROM "
            f"(FROM one WHERE state = 'FINISHED' LIMIT 1), range({failures}, {tasks}) AS r(i)"
        )
        new = path.with_suffix(".new")
        database.execute(f"COPY ({rows}) TO '{new}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480)")
    new.replace(path)


async def prepare(directory: Path, ref: SessionRef, arguments: argparse.Namespace) -> None:
    """Index the recording, and multiply its tables."""
    settings, layout = _settings(directory, arguments), Layout()
    builder = IndexBuilder(settings, open_store(settings), layout, products=PRODUCTS)
    try:
        manifest = (await builder.open(ref, _closing(directory))).manifest
    finally:
        await builder.close()
    _multiply_index(directory, layout, ref, manifest, arguments)
    for copy in (directory / "store" / "cache").rglob("*.parquet"):
        copy.unlink()


async def measure(directory: Path, ref: SessionRef, arguments: argparse.Namespace) -> None:
    """Build the product in a process that has no other children, so that its peak of memory is that of the build."""
    settings = _settings(directory, arguments)
    builder = IndexBuilder(settings, open_store(settings), Layout(), products=PRODUCTS)
    try:
        index = await builder.open(ref, _closing(directory))
        began, cpu = time.monotonic(), _children_cpu_s()
        product = await builder.products.wait(ref, NAME, index.manifest, 600)
        body = json.loads((await product.file(FILE)).read_bytes())
        seconds = time.monotonic() - began
    finally:
        await builder.close()
    cpu = _children_cpu_s() - cpu
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    counted = sum(finding["counts"]["tasks"] for finding in body["findings"])
    if counted < arguments.failures:
        raise SystemExit(f"the index was not the multiplied one: {counted:,} failed tasks")
    print(
        f"{arguments.tasks:,} tasks, {arguments.failures:,} failures of {arguments.message_bytes:,} bytes in "
        f"{arguments.fingerprints:,} fingerprints: {product.manifest.seconds:.2f} s to build ({seconds:.2f} s with the "
        f"start of its process, which used {cpu:.2f} s of CPU), "
        f"{peak:.0f} MiB at most, {len(body['findings'])} findings with {counted:,} tasks"
    )


def visit(directory: Path, ref: SessionRef) -> None:
    """Time the page, as the only visitor and as one of 20."""
    with running_server(directory / "store", directory / "work") as server, httpx.Client(timeout=60) as client:

        def seconds(_: int) -> float:
            began = time.monotonic()
            client.get(f"{server}{ref.url}diagnosis").raise_for_status()
            return time.monotonic() - began

        first, *warm = map(seconds, range(1 + _VISITS))
        with ThreadPoolExecutor(_VISITORS) as visitors:
            beside = sorted(visitors.map(seconds, range(5 * _VISITORS)))
    print(
        f"page: first {first * 1000:.0f} ms, then {median(warm) * 1000:.0f} ms (p95 {sorted(warm)[-2] * 1000:.0f} ms); "
        f"of {_VISITORS} visitors at once p50 {median(beside) * 1000:.0f} ms, p95 {beside[-5] * 1000:.0f} ms"
    )


def _settings(directory: Path, arguments: argparse.Namespace) -> Settings:
    return settings_for(directory / "store", index_ahead="false", index_memory=arguments.index_memory)


def _closing(directory: Path) -> Closing:
    end = json.loads(next((directory / "store").rglob("end.json")).read_bytes())
    return Closing(end["ended_ms"] * 10**6, clean=True)


def _in_own_process(step: Callable[..., Coroutine[Any, Any, None]], *given: object) -> None:
    """Linux counts the memory of a parent as that of its child until the child's program starts."""
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(step, *given))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def _run(step: Callable[..., Coroutine[Any, Any, None]], *given: object) -> None:
    asyncio.run(step(*given))


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _multiply_index(
    directory: Path, layout: Layout, ref: SessionRef, manifest: Manifest, arguments: argparse.Namespace
) -> None:
    (path,) = (directory / "store" / layout.index_prefix(ref)).glob("manifest-*.json")
    raw = json.loads(path.read_bytes())
    sizes = {name: getattr(arguments, name) for name in ("tasks", "failures", "fingerprints", "message_bytes")}
    for table in ("tasks", "task_list"):
        file = directory / "store" / layout.index_file_key(ref, manifest.build, table, 0)
        multiply(file, **sizes)
        content = file.read_bytes()
        (part,) = raw["parts"]
        (old,) = part["files"][table]
        part["files"][table] = [[*old[:2], len(content), arguments.tasks, hashlib.sha256(content).hexdigest()]]
    path.write_bytes(json.dumps(raw).encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--failures", type=int, default=40_000)
    parser.add_argument("--fingerprints", type=int, default=200)
    parser.add_argument("--message-bytes", type=int, default=1_000)
    parser.add_argument("--index-memory", default="1Gi")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ref = unpack(_CASE, directory)
        _in_own_process(prepare, directory, ref, arguments)
        _in_own_process(measure, directory, ref, arguments)
        visit(directory, ref)


if __name__ == "__main__":
    main()
