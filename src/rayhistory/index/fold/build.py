"""The second half of the fold, in DuckDB: rows are merged and the served tables are written."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path

import duckdb
import msgspec

from rayhistory.events.merged_tables import TABLES, TABLES_BY_NAME, TASK_TABLES, Table
from rayhistory.gap_descriptions import INFORMATIONAL_CODES
from rayhistory.gaps import GapCode
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.merge import create_sql, merge_sql, parquet
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.response_files import LAST_RESPONSES_TABLE, RESPONSES_TABLE, list_responses, write_responses
from rayhistory.index.fold.served_tables import (
    GAP_CONDITIONS,
    SERVED_AS_MERGED,
    SERVED_TASK_TABLES,
    TASK_END_TABLES,
    merged_table_name,
    served_sql,
    task_list_sql,
)
from rayhistory.index.fold.table_files import Database, table_path, write_table
from rayhistory.index.manifest import SessionCounts
from rayhistory.sessions.records import Closing, NodeSeal
from rayhistory.settings import Settings

_MIN_MEMORY = 128 << 20
_DUCKDB_MEMORY_SHARE = 0.7
_MIN_BYTES_FOR_THREADS = 1 << 20
"""Below this size, the threads of DuckDB take more time than they save."""
_MAX_MERGED_ROWS = 1_000_000
"""Rows that are merged at once: DuckDB cannot spill aggregates of texts well."""
_MAX_COUNT = 2**53
_MAX_JOB_TEXTS, _MAX_JOB_TEXT = 50, 200
PREVIOUS_FOLDER = "earlier"
"""The folder of the scratch directory with the merged rows of the previous generation."""

Report = Callable[[float, str], None]
"""Called with the progress from 0 to 1, and a short description of it."""
Files = dict[str, list[Path]]
"""The files of each table."""


class BuiltTables(msgspec.Struct):
    """The files of the tables, and facts about them for the manifest."""

    files: Files
    counts: SessionCounts
    first_ns: int | None
    last_ns: int | None
    ray_version: str | None


class FoldInputs(msgspec.Struct):
    """Inputs of the fold besides the rows."""

    partitions: Partitions
    closing: Closing | None
    seals: list[NodeSeal]
    removed_sources: set[str]
    """Sources of the previous generation that no longer exist. Their content was moved, and read from there."""


def build(settings: Settings, scratch: Path, inputs: FoldInputs, pool: Executor | None, report: Report) -> BuiltTables:
    """Build the tables from the partial files in the scratch directory and the previous generation.

    With a pool, its processes fold the partitions, and share the memory.
    """
    cores = available_cores() if _input_bytes(scratch) >= _MIN_BYTES_FOR_THREADS else 1
    database = open_database(scratch, settings.index_memory, cores)
    small_tables = [table for table in TABLES if table.name not in (*TASK_TABLES, RESPONSES_TABLE)]
    for table in small_tables:
        merge_table(database, table, scratch)
    list_responses(database, _input_files(scratch, RESPONSES_TABLE))
    _delete_gaps(database, inputs.removed_sources)
    files = _write_merged(database, scratch, TASK_END_TABLES)
    closing = inputs.closing
    if closing:
        closing = msgspec.structs.replace(closing, ns=max(closing.ns, _last_event_ns(database)))
    partition_count = inputs.partitions.count
    is_parallel = pool is not None and partition_count > 1
    memory, threads = settings.index_memory, cores
    if is_parallel:
        memory, threads = memory // available_cores(), 1
    work = PartitionWork(scratch, inputs.partitions, closing, memory, threads)
    run = pool.map if pool and is_parallel else map
    partitions = run(fold_partition, [work] * partition_count, range(partition_count))  # a pool starts at once
    others = [table.name for table in small_tables if table.name not in (*TASK_END_TABLES, *SERVED_AS_MERGED)]
    files |= _write_merged(database, scratch, others)
    _add_seal_gaps(database, inputs.seals)
    files |= write_small_tables(database, scratch, closing) | write_responses(database, scratch)
    for partition, names in enumerate(partitions):
        report(
            0.7 + 0.25 * (partition + 1) / partition_count, f"{partition + 1} of {partition_count} partitions merged"
        )
        for name in names:
            files.setdefault(name, []).append(table_path(scratch, name, partition))
    if closing:
        _add_empty_table_gaps(database, files)
    write_final_tables(database, scratch, closing, files)
    return _summarize(database, files)


class PartitionWork(msgspec.Struct):
    """Inputs of the fold of a partition, besides the files in the scratch directory."""

    scratch: Path
    partitions: Partitions
    closing: Closing | None
    memory: int
    threads: int


def fold_partition(work: PartitionWork, partition: int) -> list[str]:
    """Merge the task tables of one partition and write the served ones; return the names of the written tables."""
    scratch = work.scratch
    with open_database(scratch, work.memory, work.threads) as database:
        for name in TASK_END_TABLES:
            path = table_path(scratch, merged_table_name(name), 0)
            database.execute(f"CREATE VIEW {name} AS SELECT * FROM {parquet([path])}")
        for name in TASK_TABLES:
            merge_table(database, TABLES_BY_NAME[name], scratch, work.partitions, partition)
        merged = {merged_table_name(name): name for name in TASK_TABLES if name not in SERVED_AS_MERGED}
        for file_name, name in merged.items():
            write_table(database, scratch, file_name, name, partition)
        return [*merged, *write_task_tables(database, scratch, work.closing, partition)]


def partition_inputs(work: PartitionWork, partition: int) -> list[Path]:
    """Return the files that folding a partition reads."""
    scratch, file_number = work.scratch, work.partitions.file_number(partition)
    new = [path for name in TASK_TABLES for path in scratch.glob(f"{name}-{file_number}-*.parquet")]
    previous = [path for name in TASK_TABLES for path in (scratch / PREVIOUS_FOLDER).glob(f"{name}.*.parquet")]
    return [*new, *previous, *(table_path(scratch, merged_table_name(name), 0) for name in TASK_END_TABLES)]


def open_database(scratch: Path, memory: int, threads: int) -> Database:
    database = duckdb.connect()
    for option, value in {
        "memory_limit": f"{max(_MIN_MEMORY, int(memory * _DUCKDB_MEMORY_SHARE)) >> 20}MiB",
        "threads": str(threads),
        "temp_directory": str(scratch / f"spilled-{os.getpid()}"),  # processes must not share it
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }.items():
        database.execute(f"SET {option} = '{value}'")
    return database


def _input_bytes(scratch: Path) -> int:
    return sum(
        path.stat().st_size for folder in (scratch, scratch / PREVIOUS_FOLDER) for path in folder.glob("*.parquet")
    )


def _input_files(scratch: Path, table: str) -> list[Path]:
    """Return the files of a table that is not partitioned: new ones, and those of the previous generation."""
    return sorted([*scratch.glob(f"{table}-0-*.parquet"), *(scratch / PREVIOUS_FOLDER).glob(f"{table}.*.parquet")])


def merge_table(
    database: Database, table: Table, scratch: Path, partitions: Partitions | None = None, partition: int = 0
) -> None:
    """Create the merged table: one row per key. Many rows are merged in several passes, to bound memory."""
    database.execute(create_sql(table))
    partitions = partitions or Partitions()
    new = sorted(scratch.glob(f"{table.name}-{partitions.file_number(partition)}-*.parquet"))
    previous = sorted((scratch / PREVIOUS_FOLDER).glob(f"{table.name}.*.parquet"))
    condition = partitions.condition(partition)
    sources = [f"SELECT * FROM {parquet(paths)} WHERE {condition}" for paths in (new, previous) if paths]
    if not sources:
        return
    rows = f"({' UNION ALL BY NAME '.join(sources)})"
    passes = _scalar(database, f"SELECT count(*) FROM {rows}") // _MAX_MERGED_ROWS + 1
    for number in range(passes):
        where = f"hash({table.keys[0]}) % {passes} = {number}" if passes > 1 else ""
        database.execute(f"INSERT INTO {table.name} {merge_sql(table, rows, where)}")


def write_task_tables(database: Database, scratch: Path, closing: Closing | None, partition: int) -> dict[str, Path]:
    """Write the served task tables of one partition, from its merged tables in the database."""
    served = _served_queries(closing)
    return {name: write_table(database, scratch, name, f"({served[name]})", partition) for name in SERVED_TASK_TABLES}


def _write_merged(database: Database, scratch: Path, names: Iterable[str]) -> Files:
    """Write merged tables, which the next generation extends."""
    return {merged_table_name(name): [write_table(database, scratch, merged_table_name(name), name)] for name in names}


def write_small_tables(database: Database, scratch: Path, closing: Closing | None) -> Files:
    """Write the served tables that need no task tables, except gaps and dashboard responses."""
    served = _served_queries(closing)
    names = served.keys() - {"gaps", RESPONSES_TABLE, *SERVED_TASK_TABLES}
    return {name: [write_table(database, scratch, name, f"({served[name]})")] for name in names}


def write_final_tables(database: Database, scratch: Path, closing: Closing | None, files: Files) -> None:
    """Write the list of tasks and the gaps, which count what the other served tables lack."""
    files["task_list"] = [write_table(database, scratch, "task_list", f"({task_list_sql(parquet(files['tasks']))})")]
    for code, (table, condition) in GAP_CONDITIONS.items():
        others = {name: parquet(files[name]) for name in ("actors", "workers")}
        query = f"SELECT count(*) FROM {parquet(files[table])} {table} WHERE {condition.format(**others)}"
        count = _scalar(database, query)
        if count:
            _add_gap(database, code, count)
    files["gaps"] = [write_table(database, scratch, "gaps", f"({_served_queries(closing)['gaps']})")]


def _served_queries(closing: Closing | None) -> dict[str, str]:
    as_merged = {name: f"SELECT * FROM {name} ORDER BY {order}" for name, order in SERVED_AS_MERGED.items()}
    return served_sql(closing) | as_merged


def _scalar(database: Database, query: str) -> int:
    return int(database.execute(query).fetchall()[0][0])


def _last_event_ns(database: Database) -> int:
    return _scalar(database, "SELECT coalesce(max(last_ns), 0) FROM life_signs")


def _add_gap(database: Database, code: GapCode, count: int, *, source: str = "", detail: str = "") -> None:
    row = {"source": source, "kind": code.value, "detail": detail, "count": count}
    values = ", ".join(f"${name}" for name in row)
    database.execute(f"INSERT INTO gaps ({', '.join(row)}) VALUES ({values})", row)


def _add_seal_gaps(database: Database, seals: list[NodeSeal]) -> None:
    """Add the losses that the collectors of the nodes counted."""
    for seal in seals:
        node = f"node {seal.node_id}"
        if seal.set_aside:
            _add_gap(database, GapCode.EVENTS_QUARANTINED, seal.set_aside, source=node)
        if seal.dropped:
            _add_gap(database, GapCode.EVENTS_DROPPED, seal.dropped, source=node)
        if seal.late:
            _add_gap(database, GapCode.EVENTS_LATE, seal.late, detail=node)


def _add_empty_table_gaps(database: Database, files: Files) -> None:
    """Add tables that a cluster cannot have left empty: it has a node, and where there is a job there are tasks."""
    counts = {
        name: _scalar(database, f"SELECT count(*) FROM {parquet(files[name])}")
        for name in ("nodes", "jobs", "tasks", "actors")
    }
    if counts["nodes"]:
        del counts["actors"]
        if not (counts["jobs"] or counts["tasks"]):
            return  # no job ran
    for name in (name for name, count in counts.items() if not count):
        _add_gap(database, GapCode.TABLE_EMPTY, 1, detail=name)


def _delete_gaps(database: Database, sources: set[str]) -> None:
    source = r"regexp_replace(source, '@\d+$', '')"  # without the offset from which the source was read
    database.execute(f"DELETE FROM gaps WHERE {source} IN (SELECT unnest(?::VARCHAR[]))", [list(sources)])


def _summarize(database: Database, files: Files) -> BuiltTables:
    def count(table: str, condition: str = "true") -> int:
        return _scalar(database, f"SELECT count(*) FROM {parquet(files[table])} WHERE {condition}")

    jobs = database.execute(f"SELECT status, count(*) FROM {parquet(files['jobs'])} GROUP BY 1").fetchall()
    first, last = database.execute("SELECT min(first_ns), max(last_ns) FROM life_signs").fetchall()[0]
    responses = parquet(files[LAST_RESPONSES_TABLE])
    versions = database.execute(
        f"SELECT json_extract_string(body, '$.ray_version') FROM {responses} WHERE uri = '/api/version' "
        f"UNION ALL SELECT json_extract_string(body, '$.data.rayVersion') FROM {responses} "
        "WHERE uri = '/api/v0/cluster_metadata'"
    ).fetchall()
    informational = [code.value for code in INFORMATIONAL_CODES]
    [(losses,)] = database.execute(
        "SELECT coalesce(sum(count), 0)::BIGINT FROM gaps WHERE NOT list_contains(?::VARCHAR[], kind)", [informational]
    ).fetchall()
    counts = SessionCounts(
        jobs=dict(jobs),
        tasks=count("tasks", "type <> 'DRIVER_TASK'"),
        failed_tasks=count("tasks", "state = 'FAILED' AND type <> 'DRIVER_TASK' AND NOT closed_by_history"),
        actors=count("actors"),
        nodes=count("nodes"),
        gaps=min(losses, _MAX_COUNT),
        job_texts=[row[0] for row in database.execute(_job_texts_sql(files)).fetchall()],
    )
    return BuiltTables(files, counts, first, last, next((row[0] for row in versions if row[0]), None))


def _job_texts_sql(files: Files) -> str:
    """Select the text by which a session is found, for the newest jobs and each of bounded length."""
    parts = ", ".join(f"left({column}, {_MAX_JOB_TEXT})" for column in ("submission_id", "entrypoint", "metadata"))
    return (
        f"SELECT concat_ws(' ', job_id, {parts}) FROM {parquet(files['jobs'])} "
        f"ORDER BY start_time DESC NULLS LAST, job_id LIMIT {_MAX_JOB_TEXTS}"
    )
