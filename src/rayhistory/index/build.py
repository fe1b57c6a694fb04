"""The second half of the fold, in DuckDB: rows merged, what was left open closed, tables written."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path

import duckdb
import msgspec

from rayhistory.events.tables import BY_NAME, BY_TASK, TABLES, Table
from rayhistory.index.answers import LAST_ANSWERS, SNAPSHOTS, list_answers, write_answers
from rayhistory.index.cores import cores
from rayhistory.index.derive import (
    ENDS_OF_TASKS,
    GAP_QUERIES,
    LATE,
    NO_LOSS,
    SERVED_AS_MERGED,
    SERVED_BY_TASK,
    merged_file,
    served_sql,
    task_list_sql,
)
from rayhistory.index.manifest import Closing, Counts
from rayhistory.index.merge import create_sql, merge_sql, parquet
from rayhistory.index.parts import Parts
from rayhistory.index.writing import Database, write, written
from rayhistory.layout.records import NodeSeal
from rayhistory.settings import Settings

_LEAST_MEMORY = 128 << 20
_ROWS_AT_ONCE = 1_000_000
EARLIER = "earlier"
"""The folder of the scratch directory with the merged rows of the generation before."""

Report = Callable[[float, str], None]
Files = dict[str, list[Path]]
"""The files of each table, one for each part of the fold."""


class Built(msgspec.Struct):
    """The tables as files, and what the manifest says of them."""

    files: Files
    counts: Counts
    first_ns: int | None
    last_ns: int | None
    ray_version: str | None


class Given(msgspec.Struct):
    """What the fold knows besides the rows."""

    parts: Parts
    closing: Closing | None
    seals: list[NodeSeal]
    gone: set[str]
    """Sources of the generation before that are no more: what they held is elsewhere, and was read there."""


def build(settings: Settings, scratch: Path, given: Given, pool: Executor | None, report: Report) -> Built:
    """Tables from the partial files in the scratch directory, and from those of the generation before.

    With a pool, the parts are shared out over its processes, and the memory too.
    """
    database = open_database(scratch, settings.fold_memory, cores())
    small = [table for table in TABLES if table.name not in (*BY_TASK, SNAPSHOTS)]
    for table in small:
        merge_table(database, table, scratch)
    list_answers(database, _inputs(scratch, SNAPSHOTS))
    source = r"regexp_replace(source, '@\d+$', '')"  # without the place from which it was read
    database.execute(f"DELETE FROM gaps WHERE {source} IN (SELECT unnest(?::VARCHAR[]))", [list(given.gone)])
    files = _write_merged(database, scratch, ENDS_OF_TASKS)
    closing = given.closing
    if closing:
        closing = msgspec.structs.replace(closing, ns=_last_sign_of_life(database, closing.ns))
    number_of_parts = given.parts.number
    shared = pool is not None and number_of_parts > 1
    memory, threads = (settings.fold_memory // cores(), 1) if shared else (settings.fold_memory, cores())
    work = PartWork(scratch, given.parts, closing, memory, threads)
    share = pool.map if pool and shared else map
    parts = share(fold_part, [work] * number_of_parts, range(number_of_parts))  # begun by the pool, if there is one
    others = [table.name for table in small if table.name not in (*ENDS_OF_TASKS, *SERVED_AS_MERGED)]
    files |= _write_merged(database, scratch, others)
    _count_what_collectors_lost(database, given.seals)
    files |= write_small(database, scratch, closing) | write_answers(database, scratch)
    for part, names in enumerate(parts):
        report(0.7 + 0.25 * (part + 1) / number_of_parts, f"{part + 1} of {number_of_parts} parts merged")
        for name in names:
            files.setdefault(name, []).append(written(scratch, name, part))
    write_last(database, scratch, closing, files)
    return _facts(database, files)


class PartWork(msgspec.Struct):
    """What folding a part needs, besides the files in the scratch directory."""

    scratch: Path
    parts: Parts
    closing: Closing | None
    memory: int
    threads: int


def fold_part(work: PartWork, part: int) -> list[str]:
    """The tables of tasks of one part, merged and served; returns the names of those that it has written."""
    scratch = work.scratch
    with open_database(scratch, work.memory, work.threads) as database:
        for name in ENDS_OF_TASKS:
            path = written(scratch, merged_file(name), 0)
            database.execute(f"CREATE VIEW {name} AS SELECT * FROM {parquet([path])}")
        for name in BY_TASK:
            merge_table(database, BY_NAME[name], scratch, work.parts, part)
        merged = [name for name in BY_TASK if name not in SERVED_AS_MERGED]
        files = {merged_file(name): write(database, scratch, merged_file(name), name, part) for name in merged}
        return [*files, *write_tasks(database, scratch, work.closing, part)]


def inputs_of_part(work: PartWork, part: int) -> list[Path]:
    """The files that folding a part reads."""
    scratch = work.scratch
    fresh = [path for name in BY_TASK for path in scratch.glob(f"{name}-{work.parts.file(part)}-*.parquet")]
    earlier = [path for name in BY_TASK for path in (scratch / EARLIER).glob(f"{name}.*.parquet")]
    return [*fresh, *earlier, *(written(scratch, merged_file(name), 0) for name in ENDS_OF_TASKS)]


def open_database(scratch: Path, memory: int, threads: int) -> Database:
    database = duckdb.connect()
    for option, value in {
        "memory_limit": f"{max(_LEAST_MEMORY, int(memory * 0.7)) >> 20}MiB",
        "threads": str(threads),
        "temp_directory": str(scratch / f"spilled-{os.getpid()}"),  # two processes must not share it
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }.items():
        database.execute(f"SET {option} = '{value}'")
    return database


def _inputs(scratch: Path, table: str) -> list[Path]:
    """The rows of a table that is not split by task: new ones, and those of the generation before."""
    return sorted([*scratch.glob(f"{table}-0-*.parquet"), *(scratch / EARLIER).glob(f"{table}.*.parquet")])


def merge_table(database: Database, table: Table, scratch: Path, parts: Parts | None = None, part: int = 0) -> None:
    """One row per key. When there are very many, some at a time: the merge of texts does not spill well."""
    database.execute(create_sql(table))
    parts = parts or Parts()
    fresh = sorted(scratch.glob(f"{table.name}-{parts.file(part)}-*.parquet"))
    earlier = sorted((scratch / EARLIER).glob(f"{table.name}.*.parquet"))
    sources = [f"SELECT * FROM {parquet(paths)} WHERE {parts.condition(part)}" for paths in (fresh, earlier) if paths]
    if not sources:
        return
    rows = f"({' UNION ALL BY NAME '.join(sources)})"
    times = number(database, f"SELECT count(*) FROM {rows}") // _ROWS_AT_ONCE + 1
    for time in range(times):
        where = f"hash({table.keys[0]}) % {times} = {time}" if times > 1 else ""
        database.execute(f"INSERT INTO {table.name} {merge_sql(table, rows, where)}")


def write_tasks(database: Database, scratch: Path, closing: Closing | None, part: int) -> dict[str, Path]:
    """The served tables of tasks, of one part: its merged ones are in the database, and so is what ends tasks."""
    served = _served(closing)
    return {name: write(database, scratch, name, f"({served[name]})", part) for name in SERVED_BY_TASK}


def _write_merged(database: Database, scratch: Path, names: Iterable[str]) -> Files:
    """What a later generation begins with."""
    return {merged_file(name): [write(database, scratch, merged_file(name), name)] for name in names}


def write_small(database: Database, scratch: Path, closing: Closing | None) -> Files:
    """The served tables that need nothing of the tables of tasks, but for the dashboard's answers."""
    served = _served(closing)
    names = served.keys() - {"gaps", SNAPSHOTS, *SERVED_BY_TASK}
    return {name: [write(database, scratch, name, f"({served[name]})")] for name in names}


def write_last(database: Database, scratch: Path, closing: Closing | None, files: Files) -> None:
    """The list of tasks, and the gaps, because what all others show to be missing is counted there."""
    files["task_list"] = [write(database, scratch, "task_list", f"({task_list_sql(parquet(files['tasks']))})")]
    for kind, (table, condition) in GAP_QUERIES.items():
        count = number(database, f"SELECT count(*) FROM {parquet(files[table])} WHERE {condition}")
        if count:
            database.execute("INSERT INTO gaps VALUES ('', ?, '', ?)", [kind, count])
    files["gaps"] = [write(database, scratch, "gaps", f"({_served(closing)['gaps']})")]


def _served(closing: Closing | None) -> dict[str, str]:
    as_merged = {name: f"SELECT * FROM {name} ORDER BY {order}" for name, order in SERVED_AS_MERGED.items()}
    return served_sql(closing) | as_merged


def number(database: Database, query: str) -> int:
    return int(database.execute(query).fetchall()[0][0])


def _last_sign_of_life(database: Database, ns: int) -> int:
    return max(ns, number(database, "SELECT coalesce(max(last_ns), 0) FROM life_signs"))


def _count_what_collectors_lost(database: Database, seals: list[NodeSeal]) -> None:
    for seal in seals:
        for kind, count in (("event set aside by the collector", seal.set_aside), ("event dropped", seal.dropped)):
            if count:
                database.execute("INSERT INTO gaps VALUES (?, ?, '', ?)", [f"node {seal.node_id}", kind, count])
        if seal.late:
            database.execute("INSERT INTO gaps VALUES ('', ?, ?, ?)", [LATE, f"node {seal.node_id}", seal.late])


def _facts(database: Database, files: Files) -> Built:
    def count(table: str, condition: str = "true") -> int:
        return number(database, f"SELECT count(*) FROM {parquet(files[table])} WHERE {condition}")

    jobs = database.execute(f"SELECT status, count(*) FROM {parquet(files['jobs'])} GROUP BY 1").fetchall()
    first, last = database.execute("SELECT min(first_ns), max(last_ns) FROM life_signs").fetchall()[0]
    answers = parquet(files[LAST_ANSWERS])
    versions = database.execute(
        f"SELECT json_extract_string(body, '$.ray_version') FROM {answers} WHERE uri = '/api/version' "
        f"UNION ALL SELECT json_extract_string(body, '$.data.rayVersion') FROM {answers} "
        "WHERE uri = '/api/v0/cluster_metadata'"
    ).fetchall()
    [(lost,)] = database.execute(
        "SELECT coalesce(sum(count), 0)::BIGINT FROM gaps WHERE NOT list_contains(?::VARCHAR[], kind)", [list(NO_LOSS)]
    ).fetchall()
    counts = Counts(
        jobs=dict(jobs),
        tasks=count("tasks", "type <> 'DRIVER_TASK'"),
        failed_tasks=count("tasks", "state = 'FAILED' AND type <> 'DRIVER_TASK' AND NOT closed_by_history"),
        actors=count("actors"),
        nodes=count("nodes"),
        gaps=min(lost, 2**53),
    )
    return Built(files, counts, first, last, next((row[0] for row in versions if row[0]), None))
