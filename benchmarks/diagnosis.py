# ruff: noqa: S608
"""Time and memory of a diagnosis: a million tasks with 40,000 failures in 200 fingerprints, and worse.

The tables are those of a recorded session, with its failed and its finished task repeated. The product is built as the
server builds it, in a process with a memory limit.
"""

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from failures.fixtures import unpack
from rayhistory.diagnosis.diagnosis_product import FILE, NAME
from rayhistory.index.manifest import Manifest
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.storage import open_store
from support.index_builder import settings_for

_CASE = "exceptions-task_raises"


def multiply(path: Path, *, tasks: int, failures: int, fingerprints: int, message_bytes: int) -> int:
    """Rewrite the table of tasks; return its size."""
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
    return new.replace(path).stat().st_size


async def measure(directory: Path, ref: SessionRef, arguments: argparse.Namespace) -> None:
    settings = settings_for(directory / "store", index_ahead="false", index_memory=arguments.index_memory)
    store, layout = open_store(settings), Layout()
    closing = Closing(
        json.loads(next((directory / "store").rglob("end.json")).read_bytes())["ended_ms"] * 10**6, clean=True
    )
    builder = IndexBuilder(settings, store, layout, products=PRODUCTS)
    try:
        manifest = (await builder.open(ref, closing)).manifest
    finally:
        await builder.close()
    _multiply_index(directory, layout, ref, manifest, arguments)
    for copy in (directory / "store" / "cache").rglob("*.parquet"):
        copy.unlink()
    builder = IndexBuilder(settings, open_store(settings), layout, products=PRODUCTS)
    try:
        index = await builder.open(ref, closing)
        began, cpu = time.monotonic(), _children_cpu_s()
        product = await builder.products.wait(ref, NAME, index.manifest, 600)
        body = json.loads((await product.file(FILE)).read_bytes())
        seconds = time.monotonic() - began
    finally:
        await builder.close()
    cpu = _children_cpu_s() - cpu
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    counted = sum(finding["counts"]["tasks"] for finding in body["findings"])
    print(
        f"{arguments.tasks:,} tasks, {arguments.failures:,} failures of {arguments.message_bytes:,} bytes in "
        f"{arguments.fingerprints:,} fingerprints: {product.manifest.seconds:.2f} s to build ({seconds:.2f} s with the "
        f"start of its process, which used {cpu:.2f} s of CPU), "
        f"{peak:.0f} MiB at most, {len(body['findings'])} findings with {counted:,} tasks"
    )


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
        raw["files"][table] = [multiply(file, **sizes)]
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
        asyncio.run(measure(directory, unpack(_CASE, directory), arguments))


if __name__ == "__main__":
    main()
