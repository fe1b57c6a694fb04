"""Helpers of fold tests: write events to a store, fold them, and read the tables."""

import asyncio
import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.events.row_buffer import RowBuffer
from rayhistory.index.fold.as_of import serve_as_of
from rayhistory.index.fold.fetch_ahead import FetchAhead
from rayhistory.index.fold.fold_process import FoldJob, fold
from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.source_ranges import SourceRanges
from rayhistory.index.fold.source_reader import read_source
from rayhistory.index.fold.sources import Source
from rayhistory.index.manifest import MERGED_PREFIX, Manifest
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.service.as_of_cache import AsOfPoint, as_of_job, as_of_tables
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import Settings, resolve
from rayhistory.storage import Store, open_store
from support.paths import DATA

REF = SessionRef.checked("default", "folded", "session_2026-11-15_19-18-08_055078_15551")
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
END = Closing(1_794_770_600_000_000_000, clean=True)
RECORDED = [json.loads(line) for line in (DATA / "ray-2.60/events.jsonl").read_text().splitlines()]
RECORDED_LOSSES = 2
"""Number of gaps of the recorded session: its tasks without a definition."""

Tables = dict[str, list[tuple[Any, ...]]]


def same_spans(rows: list[tuple[Any, ...]]) -> list[str]:
    """Normalize profile rows, so that spans are compared by value and not by the formatting of their JSON."""
    return sorted(
        json.dumps([*row[:-1], sorted(json.loads(row[-1]), key=lambda span: json.dumps(span, sort_keys=True))],
                   sort_keys=True)
        for row in rows
    )  # fmt: skip


def settings_for(directory: Path, memory: str = "1Gi", cache: Path | None = None) -> Settings:
    given = {
        "LOCAL_STORAGE_DIR": str(directory),
        "RAYHISTORY_INDEX_MEMORY": memory,
        "RAYHISTORY_CACHE_DIR": str(cache or directory / "cache"),
    }
    return resolve("historyserver", {}, given)[0]


def as_lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def put(directory: Path, number: int, data: bytes, category: str = "node_events", suffix: str = ".jsonl") -> str:
    """Write an event object; return its key, which contains the number."""
    directory.mkdir(parents=True, exist_ok=True)
    key = Layout().events_key(REF, NODE, category, 1_794_770_300_000_000_000 + number, compressed=False)
    key = key.removesuffix(".jsonl") + suffix
    asyncio.run(_put(directory, key, data))
    return key


async def _put(directory: Path, key: str, data: bytes) -> None:
    await open_store(settings_for(directory), writable=True).put(key, data)


def portions_of(store: Store, source: Source, rows: RowBuffer) -> AsyncIterator[tuple[int, int]]:
    """Read one source of a store into rows, as a fold does."""
    fetches = FetchAhead(SourceRanges(store).read, [source], max_bytes=64 << 20)
    return read_source(source, fetches.pieces(source), rows)


def fold_session(
    directory: Path,
    closing: Closing | None = END,
    *,
    memory: str = "1Gi",
    fresh: bool = False,
    pool: Executor | None = None,
) -> Manifest:
    with tempfile.TemporaryDirectory() as scratch:
        job = FoldJob(msgspec.to_builtins(settings_for(directory, memory)), REF, closing, scratch, fresh)
        return asyncio.run(fold(job, lambda progress, detail: None, pool))


def put_folded(directory: Path, memory: str = "1Gi") -> Manifest:
    """Store the recorded events with their index, which is built once per process."""
    source, manifest = _folded(memory)
    shutil.copytree(source, directory, dirs_exist_ok=True)
    return manifest


@functools.cache
def _folded(memory: str) -> tuple[Path, Manifest]:
    directory = Path(tempfile.mkdtemp(prefix="rh-folded-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    put(directory, 0, as_lines(RECORDED))
    return directory, fold_session(directory, memory=memory)


def files_of(directory: Path, manifest: Manifest, table: str) -> list[Path]:
    files = manifest.files_of(table)
    return [directory / Layout().index_file_key(REF, file.folder, table, file.number) for file in files]


def opened(directory: Path, manifest: Manifest) -> OpenIndex:
    """Open an index without a cache."""

    async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        paths = files_of(directory, manifest, name)
        return [paths[number] for number in numbers]

    return OpenIndex(manifest, fetch)


def source_of(directory: Path, manifest: Manifest, table: str) -> str:
    """Return the SQL source of a table, as readers see it."""
    return asyncio.run(opened(directory, manifest).read((table,), str))


def read_rows(source: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with _database().cursor() as database:
        return sorted(database.execute(f"SELECT {columns} FROM {source}").fetchall(), key=repr)


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the database of all readers: opening one takes longer than reading a small table."""
    database = duckdb.connect()
    database.execute("SET enable_external_file_cache = false")  # tests replace files
    return database


def read_files(paths: list[Path], columns: str = "*") -> list[tuple[Any, ...]]:
    return read_rows(parquet(paths), columns)


def served_tables(manifest: Manifest) -> list[str]:
    return [name for name in manifest.tables if not name.startswith(MERGED_PREFIX)]


def tables(directory: Path, manifest: Manifest, task_columns: str = "*") -> Tables:
    """Read the served tables. Gaps of single objects are left out, gaps of the whole session are not."""
    found = {
        name: read_rows(source_of(directory, manifest, name), task_columns if name == "tasks" else "*")
        for name in served_tables(manifest)
    }
    found["gaps"] = [row for row in found["gaps"] if row[0] == ""]
    return found


def tables_as_of(directory: Path, manifest: Manifest, ns: int, task_columns: str = "*") -> Tables:
    found = build_as_of(directory, manifest, ns, served_tables(manifest), task_columns)
    found["gaps"] = [row for row in found["gaps"] if row[0] == ""]
    return found


def build_as_of(directory: Path, manifest: Manifest, ns: int, names: list[str], task_columns: str = "*") -> Tables:
    """Read some tables as of a point in time: tables of tasks from views, others from files that a process wrote."""
    found = {
        name: read_rows(as_of_source(directory, manifest, ns, name), task_columns if name == "tasks" else "*")
        for name in names
        if name not in manifest.files
    }
    for point in (AsOfPoint(REF, manifest, ns), AsOfPoint(REF, manifest, ns, gaps=True)):
        if wanted := [name for name in point.tables if name in names]:
            copies = {name: files_of(directory, manifest, name) for name in point.needed}
            with tempfile.TemporaryDirectory() as folder:
                job = as_of_job(settings_for(directory), point, copies, folder)
                written = serve_as_of(msgspec.structs.replace(job, names=wanted))
                found |= {name: read_files(list(map(Path, paths))) for name, paths in written.items()}
    return found


def opened_as_of(directory: Path, manifest: Manifest, ns: int) -> OpenIndex:
    """Open the tables of tasks as of a point in time, without a cache."""

    async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        paths = files_of(directory, manifest, "tasks" if name == "task_list" else name)
        return [paths[number] for number in numbers]

    return OpenIndex(as_of_tables(manifest, ns), fetch, AsOfPoint(REF, manifest, ns).sources)


def as_of_source(directory: Path, manifest: Manifest, ns: int, table: str) -> str:
    """Return the SQL source of a table of tasks as of a point in time."""
    return asyncio.run(opened_as_of(directory, manifest, ns).read((table,), str))


def rows(directory: Path, manifest: Manifest, query: str) -> list[tuple[Any, ...]]:
    """Run a query on the served tables."""
    with duckdb.connect() as database:
        for name in served_tables(manifest):
            database.execute(f"CREATE VIEW {name} AS SELECT * FROM {source_of(directory, manifest, name)}")
        return database.execute(query).fetchall()
