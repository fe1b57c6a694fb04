"""Replace several parts of an index by one, so that readers open few files.

`FAN_IN` parts of similar size are replaced by one. So a row is rewritten only when the index has become about `FAN_IN`
times as large. Superseded rows are left out.
"""

import math
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import duckdb
import msgspec

from rayhistory.index.batch_ranges import join_ranges
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.build import write_key_tables, write_task_list
from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.part_tables import (
    DEFINITIONS,
    DEPENDS,
    KEYS,
    SUPERSEDED,
    UNEXECUTED,
    UPDATES,
    PartFile,
    merged_rows_sql,
    rows_sql,
)
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.previous_index import PreviousIndex
from rayhistory.index.fold.table_files import Files, open_database, table_path, write_table
from rayhistory.index.manifest import Part

FAN_IN = 8
_SUPERSEDED_SHARE = 0.5
_MIN_REWRITTEN_ROWS = 10_000
"""For the share of superseded rows, a smaller part counts as if it had this many rows.

If the share is large, the part is rewritten alone. A few superseded rows in a small part are not worth that.
"""
_PARTITION_TABLES = (DEFINITIONS, UPDATES, "tasks", "profile_events", KEYS, DEPENDS, UNEXECUTED)


def choose_parts(parts: list[Part]) -> list[Part]:
    """Return the parts to replace by one. Empty if there are few enough."""
    levels: dict[int, list[Part]] = {}
    for part in parts:
        levels.setdefault(_level(_valid_rows(part)), []).append(part)
    chosen: list[Part] = []
    for level in sorted(levels):
        grown = bool(chosen) and _level(sum(map(_valid_rows, chosen))) == level
        if len(levels[level]) + grown >= FAN_IN:
            chosen += levels[level]
        elif chosen:
            break
    if chosen:
        return chosen
    return [part for part in parts if part.superseded > max(part.rows, _MIN_REWRITTEN_ROWS) * _SUPERSEDED_SHARE][:1]


def _valid_rows(part: Part) -> int:
    return max(part.rows - part.superseded, 0)


def _level(rows: int) -> int:
    return int(math.log(max(rows, 1), FAN_IN))


class CompactionWork(msgspec.Struct):
    """Inputs of the compaction of a partition."""

    scratch: Path
    partitions: Partitions
    files: dict[str, list[PartFile]]
    superseded: list[str]
    memory: int
    threads: int


def compact(
    previous: PreviousIndex,
    chosen: list[Part],
    scratch: Path,
    partitions: Partitions,
    *,
    memory: int,
    pool: Executor | None,
) -> Files:
    """Write the part that replaces the chosen ones; return its files.

    With a pool, its processes share the work and the memory.
    """
    tables = (DEFINITIONS, UPDATES, "tasks", "profile_events")
    files = {table: previous.fetch_whole(table, chosen) for table in tables}
    threads = available_cores()
    is_parallel = pool is not None and partitions.count > 1
    if is_parallel:
        memory, threads = memory // threads, 1
    work = CompactionWork(scratch, partitions, files, previous.superseded(), memory, threads)
    run: Callable[..., object] = pool.map if pool and is_parallel else map
    list(run(compact_partition, [work] * partitions.count, range(partitions.count)))  # type: ignore[call-overload]
    written: Files = {
        name: [table_path(scratch, name, partition) for partition in range(partitions.count)]
        for name in _PARTITION_TABLES
    }
    with open_database(scratch, memory, threads) as database:
        written["task_list"] = [write_task_list(database, scratch, written["tasks"])]
        written |= _write_superseded(database, scratch, previous, chosen)
    return written


def compact_partition(work: CompactionWork, partition: int) -> None:
    """Write the valid rows that the replaced parts have in one range of task ids."""
    condition = work.partitions.condition(partition)
    scratch, replaced = work.scratch, work.superseded
    with open_database(scratch, work.memory, work.threads) as database:
        sources = {
            "task_definitions": merged_rows_sql(work.files[DEFINITIONS], replaced, condition),
            "task_updates": merged_rows_sql(work.files[UPDATES], replaced, condition),
            "profile_events": merged_rows_sql(work.files["profile_events"], [], condition),
            "tasks": f"(SELECT * FROM {rows_sql(work.files['tasks'], replaced)} WHERE {condition})",
        }
        for name, source in sources.items():
            database.execute(f"CREATE VIEW {name} AS FROM {source}")
        write_table(database, scratch, DEFINITIONS, "task_definitions", partition)
        write_table(database, scratch, UPDATES, "task_updates", partition)
        by_id = "(FROM tasks ORDER BY task_id, attempt_number DESC)"
        write_table(database, scratch, "tasks", by_id, partition)
        write_table(database, scratch, "profile_events", "(FROM profile_events ORDER BY task_id, attempt)", partition)
        write_key_tables(database, scratch, partition)


def _write_superseded(
    database: duckdb.DuckDBPyConnection, scratch: Path, previous: PreviousIndex, chosen: list[Part]
) -> Files:
    """Write the list of the rows that the chosen parts replace in all other parts."""
    lists = [file.path for file in previous.fetch_whole(SUPERSEDED, chosen)]
    others = {part.name for part in previous.parts} - {part.name for part in chosen}
    if not (lists and others):
        return {}
    names = ", ".join(f"'{name}'" for name in others)
    rows = f"(FROM {parquet(lists)} WHERE part IN ({names}))"
    if not database.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0]:
        return {}
    return {SUPERSEDED: [write_table(database, scratch, SUPERSEDED, rows)]}


def parts_after(
    previous: PreviousIndex, chosen: list[Part], replacement: Part, replaced_by: dict[str, set[str]]
) -> list[Part]:
    """Return the parts of the next generation.

    `replaced_by` has, for each part, the names of the parts that replace some of its rows. Compaction drops the
    replaced rows. If the part with the newer rows is lost later, the dropped rows must be made again from their
    objects. So the entry of that part also lists the generations for which these objects were read.
    """
    names = {part.name for part in chosen}
    replacing = set().union(*(replaced_by.get(name, set()) for name in names))
    remaining = [
        msgspec.structs.replace(part, batches=join_ranges([*part.batches, *replacement.batches]))
        if part.name in replacing
        else part
        for part in previous.parts
        if part.name not in names
    ]
    return [replacement, *remaining]
