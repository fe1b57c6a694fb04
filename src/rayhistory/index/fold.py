"""The fold of one session, as a process of its own: `python -m rayhistory.index.fold` with a FoldJob on standard input.

It runs apart from the server, so that its memory and its CPU are its own, and speaks on standard output: one JSON line
per step of progress, and the manifest at the end.
"""

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.events.tables import TABLES
from rayhistory.index.derive import GAP_QUERIES, served_sql
from rayhistory.index.manifest import SCHEMA, Closing, Counts, Manifest, next_generation, publish
from rayhistory.index.merge import create_sql, merge_sql
from rayhistory.index.partials import PartialWriter
from rayhistory.index.read import read_source
from rayhistory.index.sources import Source, digest, list_sources
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.records import NodeSeal
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

_ONE_PROCESS_IS_ENOUGH = 16 << 20
_ROWS_PER_PART = 1_000_000

Report = Callable[[float, str], None]


class FoldJob(msgspec.Struct):
    settings: dict[str, Any]
    ref: SessionRef
    closing: Closing | None


class FoldReport(msgspec.Struct, omit_defaults=True):
    """A line of the fold's output."""

    progress: float = 0.0
    detail: str = ""
    manifest: Manifest | None = None


async def fold(job: FoldJob, report: Report) -> Manifest:
    began = time.monotonic()
    settings = Settings(**job.settings)
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    scratch = Path(tempfile.mkdtemp(prefix="rayhistory-fold-"))
    try:
        sources = await list_sources(store, layout, job.ref)
        report(0.02, f"{len(sources)} objects to read")
        events = await _decode_all(settings, sources, scratch, report)
        seals = await _read_seals(store, layout, job.ref)
        report(0.7, f"{events:,} events read, merging")
        tables = await asyncio.to_thread(_merge, settings, scratch, job.closing, seals, report)
        report(0.95, "writing the index")
        return await _seal(store, layout, job, tables, _Facts(digest(sources), events, began, sources))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Facts(msgspec.Struct):
    covered: str
    events: int
    began: float
    sources: list[Source]


async def _decode_all(settings: Settings, sources: list[Source], scratch: Path, report: Report) -> int:
    total = sum(source.size for source in sources)
    if total < _ONE_PROCESS_IS_ENOUGH:
        return await decode(settings, sources, scratch, "0")
    workers = max(1, min(os.cpu_count() or 1, len(sources)))
    portions = _portions(sources, workers * 4)
    events = done = 0
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        arguments = [(msgspec.to_builtins(settings), portion, scratch, str(i)) for i, portion in enumerate(portions)]
        for finished in asyncio.as_completed([loop.run_in_executor(pool, decode_in_process, a) for a in arguments]):
            events += await finished
            done += 1
            report(0.02 + 0.68 * done / len(portions), f"{events:,} events read")
    return events


def _portions(sources: list[Source], number: int) -> list[list[Source]]:
    """The sources in portions of about the same size, the largest first."""
    portions: list[list[Source]] = [[] for _ in range(number)]
    sizes = [0] * number
    for source in sorted(sources, key=lambda s: -s.size):
        smallest = sizes.index(min(sizes))
        portions[smallest].append(source)
        sizes[smallest] += source.size
    return [portion for portion in portions if portion]


def decode_in_process(arguments: tuple[dict[str, Any], list[Source], Path, str]) -> int:
    settings, sources, scratch, name = arguments
    return asyncio.run(decode(Settings(**settings), sources, scratch, name))


async def decode(settings: Settings, sources: list[Source], scratch: Path, name: str) -> int:
    """Rows of the sources into partial files; returns the number of events."""
    store = open_store(settings)
    writer = PartialWriter(scratch, name)
    events = 0
    for source in sources:
        try:
            async for rows, count in read_source(store, source):
                writer.take(rows)
                events += count
        except ObjectNotFound:
            rows_of_gap = (source.key, "object that disappeared while it was read", "", 1)
            writer.add("gaps", rows_of_gap)
    writer.close()
    await store.close()
    return events


async def _read_seals(store: Store, layout: Layout, ref: SessionRef) -> list[NodeSeal]:
    keys = [info.key async for info in store.list_all(layout.node_seals_prefix(ref))]
    seals = []
    for key in keys:
        try:
            seals.append(msgspec.json.decode(await store.get(key), type=NodeSeal))
        except (msgspec.DecodeError, ObjectNotFound):
            continue
    return seals


class _Tables(msgspec.Struct):
    """The tables as files, and what the manifest says of them."""

    files: dict[str, Path]
    counts: Counts
    first_ns: int | None
    last_ns: int | None
    ray_version: str | None


def _merge(
    settings: Settings, scratch: Path, closing: Closing | None, seals: list[NodeSeal], report: Report
) -> _Tables:
    database = _open(settings, scratch)
    for table in TABLES:
        partials = f"read_parquet('{scratch}/{table.name}-*.parquet')"
        database.execute(create_sql(table))
        if not any(scratch.glob(f"{table.name}-*.parquet")):
            continue
        rows = _number(database, f"SELECT count(*) FROM {partials}")
        parts = rows // _ROWS_PER_PART + 1
        for part in range(parts):
            where = f"hash({table.keys[0]}) % {parts} = {part}" if parts > 1 else ""
            database.execute(f"INSERT INTO {table.name} {merge_sql(table, partials, where)}")
    report(0.85, "closing what was left open")
    if closing:
        closing = Closing(_last_sign_of_life(database, closing.ns), closing.clean)
    for seal in seals:
        for kind, count in (
            ("event set aside by the collector", seal.set_aside),
            ("event dropped", seal.dropped),
        ):
            if count:
                database.execute("INSERT INTO gaps VALUES (?, ?, '', ?)", [f"node {seal.node_id}", kind, count])
    files = {}
    served = served_sql(closing)
    for name, query in served.items():
        if name != "gaps":
            files[name] = _write(database, scratch, name, query)
    for kind, query in GAP_QUERIES.items():
        count = _number(database, _on_files(query, files))
        if count:
            database.execute("INSERT INTO gaps VALUES ('', ?, '', ?)", [kind, count])
    files["gaps"] = _write(database, scratch, "gaps", served["gaps"])
    return _facts(database, files)


def _last_sign_of_life(database: duckdb.DuckDBPyConnection, ns: int) -> int:
    return max(ns, _number(database, "SELECT coalesce(max(last_ns), 0) FROM life_signs"))


def _open(settings: Settings, scratch: Path) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(str(scratch / "merge.duckdb"))
    for option, value in {
        "memory_limit": f"{int(settings.fold_memory * 0.7) // 2**20}MiB",
        "temp_directory": str(scratch),
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }.items():
        database.execute(f"SET {option} = '{value}'")
    return database


def _write(database: duckdb.DuckDBPyConnection, scratch: Path, name: str, query: str) -> Path:
    path = scratch / f"served-{name}.parquet"
    database.execute(
        f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480)"
    )
    return path


def _on_files(query: str, files: dict[str, Path]) -> str:
    table = query.split("FROM ")[1].split(maxsplit=1)[0]
    return query.replace(f"FROM {table}", f"FROM read_parquet('{files[table]}')", 1)


def _facts(database: duckdb.DuckDBPyConnection, files: dict[str, Path]) -> _Tables:
    def number(query: str) -> int:
        return _number(database, _on_files(query, files))

    jobs = database.execute(f"SELECT status, count(*) FROM read_parquet('{files['jobs']}') GROUP BY 1").fetchall()
    first, last = database.execute("SELECT min(first_ns), max(last_ns) FROM life_signs").fetchall()[0]
    version = database.execute(
        "SELECT json_extract_string(body, '$.ray_version') FROM snapshots WHERE uri = '/api/version' "
        "UNION ALL SELECT json_extract_string(body, '$.data.rayVersion') FROM snapshots "
        "WHERE uri = '/api/v0/cluster_metadata'"
    ).fetchall()
    counts = Counts(
        jobs=dict(jobs),
        tasks=number("SELECT count(*) FROM tasks WHERE type <> 'DRIVER_TASK'"),
        failed_tasks=number("SELECT count(*) FROM tasks WHERE state = 'FAILED' AND type <> 'DRIVER_TASK'"),
        actors=number("SELECT count(*) FROM actors WHERE true"),
        nodes=number("SELECT count(*) FROM nodes WHERE true"),
        gaps=_number(database, "SELECT coalesce(sum(count), 0) FROM gaps WHERE source <> ''"),
    )
    return _Tables(files, counts, first, last, next((row[0] for row in version if row[0]), None))


def _number(database: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(database.execute(query).fetchall()[0][0])


async def _seal(store: Store, layout: Layout, job: FoldJob, tables: _Tables, facts: _Facts) -> Manifest:
    generation = await next_generation(store, layout, job.ref)
    build = f"{generation}-{secrets.token_hex(4)}"
    for name, path in tables.files.items():
        await store.put(layout.index_file_key(job.ref, build, name), path)
    tables.counts.size_bytes = sum(source.size for source in facts.sources)
    manifest = Manifest(
        schema=SCHEMA,
        generation=generation,
        build=build,
        files={name: path.stat().st_size for name, path in tables.files.items()},
        covered=facts.covered,
        closing=job.closing,
        counts=tables.counts,
        first_ns=tables.first_ns,
        last_ns=tables.last_ns,
        ray_version=tables.ray_version,
        seconds=round(time.monotonic() - facts.began, 3),
        events=facts.events,
    )
    return await publish(store, layout, job.ref, manifest)


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=FoldJob)

    def say(line: FoldReport) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()

    manifest = asyncio.run(fold(job, lambda progress, detail: say(FoldReport(progress, detail))))
    say(FoldReport(1.0, "done", manifest))


if __name__ == "__main__":
    main()
