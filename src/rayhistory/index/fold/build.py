"""The second half of the fold, in DuckDB: merge rows and write the served tables."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from itertools import accumulate
from pathlib import Path

import msgspec

from rayhistory.events.table_columns import TABLES, TABLES_BY_NAME, TASK_TABLES, Table
from rayhistory.gap_descriptions import INFORMATIONAL_CODES
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.earlier_rows import AFFECTED, FOUND, EarlierRows, find_earlier_rows
from rayhistory.index.fold.gap_rows import add_empty_table_gaps, add_seal_gaps, delete_gaps, write_gaps
from rayhistory.index.fold.merge import create_sql, merge_sql, parquet
from rayhistory.index.fold.part_tables import (
    DEPENDS,
    KEYS,
    SUPERSEDED,
    TASK_COUNTS,
    UNEXECUTED,
    PartFile,
    count_flags,
    depends_sql,
    keys_sql,
    merged_rows_sql,
    task_list_rows_sql,
    unexecuted_sql,
)
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.previous_index import PreviousIndex
from rayhistory.index.fold.response_files import LAST_RESPONSES_TABLE, RESPONSES_TABLE, list_responses, write_responses
from rayhistory.index.fold.served_tables import (
    SERVED_AS_MERGED,
    SERVED_TASK_TABLES,
    TASK_END_TABLES,
    merged_table_name,
    served_queries,
    task_list_sql,
)
from rayhistory.index.fold.served_tasks import DEFINED_IN_TIME
from rayhistory.index.fold.table_files import Database, Files, open_database, row_count, scalar, table_path, write_table
from rayhistory.index.manifest import SessionCounts
from rayhistory.sessions.records import Closing, NodeSeal
from rayhistory.settings import Settings

_MIN_BYTES_FOR_THREADS = 1 << 20
"""Minimum size of a fold for which DuckDB uses threads. Below it, threads cost more time than they save."""
_MAX_MERGED_ROWS = 1_000_000
"""Maximum number of rows that are merged at once, because DuckDB cannot spill aggregates of texts well."""
_MAX_COUNT = 2**53
_MAX_JOB_TEXTS, _MAX_JOB_TEXT = 50, 200
PREVIOUS_FOLDER = "earlier"
"""The subdirectory with rows of the previous generation, which are merged with new ones."""

_ONE_ROW_TABLES = ("task_definitions", "task_updates")
"""Task tables with one row per attempt."""

Report = Callable[[float, str], None]
"""Reports the progress from 0 to 1, and a short description of the current step."""


class BuiltTables(msgspec.Struct):
    """The files of the tables, and values for the manifest."""

    files: Files
    part: Files
    """The files of the new part. Empty if no task has changed."""
    superseded: dict[str, int]
    """Number of superseded attempts in each older part."""
    touched_parts: set[str]
    task_counts: dict[str, int]
    counts: SessionCounts
    first_ns: int | None
    last_ns: int | None
    ray_version: str | None


class FoldInputs(msgspec.Struct):
    """Inputs of the fold, except the rows."""

    partitions: Partitions
    closing: Closing | None
    seals: list[NodeSeal]
    removed_sources: set[str]
    """Sources of the previous generation that no longer exist, because their content was moved to other sources."""
    previous: PreviousIndex | None = None
    partition_again: Callable[[EarlierRows], Partitions] = lambda earlier: Partitions()
    """Returns a division into partitions that is fine enough for the new and the earlier rows together."""


def build(settings: Settings, scratch: Path, inputs: FoldInputs, pool: Executor | None, report: Report) -> BuiltTables:
    """Build the tables from the partial files in the scratch directory and the previous generation.

    With a pool, its processes fold the partitions and share the memory.
    """
    cores = available_cores() if _input_bytes(scratch) >= _MIN_BYTES_FOR_THREADS else 1
    database = open_database(scratch, settings.index_memory, cores)
    small_tables = [table for table in TABLES if table.name not in (*TASK_TABLES, RESPONSES_TABLE)]
    for table in small_tables:
        merge_table(database, table, scratch)
    list_responses(database, _input_files(scratch, RESPONSES_TABLE))
    delete_gaps(database, inputs.removed_sources)
    files = _write_merged(database, scratch, TASK_END_TABLES)
    closing = _effective(inputs.closing, _last_event_ns(database))
    earlier, partitions = None, inputs.partitions
    extended = inputs.previous if inputs.previous and inputs.previous.parts else None
    if extended:
        earlier = _find_earlier(database, scratch, extended, closing)
        partitions = inputs.partition_again(earlier)
    is_parallel = pool is not None and partitions.count > 1
    memory, threads = settings.index_memory, cores
    if is_parallel:
        memory, threads = memory // available_cores(), 1
    work = PartitionWork(scratch, partitions, closing, memory, threads, extends=earlier is not None)
    if pool and is_parallel:  # they start at once
        folded = pool.map(fold_partition, [work] * partitions.count, range(partitions.count))
    else:
        folded = (_fold_beside(database, work, partition) for partition in range(partitions.count))
    others = [table.name for table in small_tables if table.name not in (*TASK_END_TABLES, *SERVED_AS_MERGED)]
    files |= _write_merged(database, scratch, others)
    add_seal_gaps(database, inputs.seals)
    files |= write_small_tables(database, scratch, closing) | write_responses(database, scratch)
    part: Files = {}
    for partition, names in enumerate(folded):
        report(
            0.7 + 0.25 * (partition + 1) / partitions.count, f"{partition + 1} of {partitions.count} partitions merged"
        )
        for name in names:
            part.setdefault(name, []).append(table_path(scratch, name, partition))
    task_counts, superseded = _count_tasks(database, part, extended)
    if closing:
        add_empty_table_gaps(database, files, task_counts)
    part["task_list"] = [write_task_list(database, scratch, part["tasks"])]
    unexecuted = _unexecuted(part, extended, superseded)
    write_gaps(database, scratch, closing, files, task_counts, unexecuted=unexecuted)
    if earlier and not any(row_count(database, path) for path in part[KEYS]):
        part = {}
    elif earlier and not any(row_count(database, path) for path in part[SUPERSEDED]):
        del part[SUPERSEDED]
    first, last = database.execute("SELECT min(first_ns), max(last_ns) FROM life_signs").fetchall()[0]
    return BuiltTables(
        files=files,
        part=part,
        superseded=superseded,
        touched_parts=earlier.touched_parts if earlier else set(),
        task_counts=task_counts,
        counts=_session_counts(database, files, task_counts),
        first_ns=first,
        last_ns=last,
        ray_version=_ray_version(database, files),
    )


def _effective(closing: Closing | None, last_event_ns: int) -> Closing | None:
    """Return the session's end, moved to the time of its last event if that is later."""
    return closing and msgspec.structs.replace(closing, ns=max(closing.ns, last_event_ns))


def _find_earlier(database: Database, scratch: Path, previous: PreviousIndex, closing: Closing | None) -> EarlierRows:
    before = _effective(previous.manifest.closing, previous.manifest.last_ns or 0)
    folder = scratch / PREVIOUS_FOLDER
    return find_earlier_rows(database, scratch, folder, previous, closing_changed=closing != before)


def _count_tasks(
    database: Database, part: Files, previous: PreviousIndex | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counts of all tasks, and the number of superseded attempts in each older part."""
    counts = count_flags(database, parquet(part[KEYS]))
    if previous is None:
        return counts, {}
    replaced = parquet(part[SUPERSEDED])
    lost, before = count_flags(database, replaced), previous.task_counts(database)
    superseded = previous.superseded_counts(database)
    for name, count in database.execute(f"SELECT part, count(*) FROM {replaced} GROUP BY part").fetchall():
        superseded[name] = superseded.get(name, 0) + count
    return {name: before[name] + counts[name] - lost[name] for name in TASK_COUNTS}, superseded


def _unexecuted(part: Files, previous: PreviousIndex | None, superseded: dict[str, int]) -> str:
    """Return an SQL source with all tasks, in any part, that ended without having run."""
    files = [PartFile("", str(path)) for path in part[UNEXECUTED]]
    lists = list(map(str, part.get(SUPERSEDED, [])))
    if previous:
        lists += previous.superseded()
        files += [
            msgspec.structs.replace(file, is_superseded=bool(superseded.get(file.part)))
            for file in previous.fetch_whole(UNEXECUTED)
        ]
    return merged_rows_sql(files, lists)


class PartitionWork(msgspec.Struct):
    """Inputs of the fold of a partition, besides the files in the scratch directory."""

    scratch: Path
    partitions: Partitions
    closing: Closing | None
    memory: int
    threads: int
    extends: bool = False
    """True if there is a previous generation. Then only changed attempts are written."""


def fold_partition(work: PartitionWork, partition: int) -> list[str]:
    """Merge the task tables of one partition, and write the served tables. Return the names of the written tables."""
    with open_database(work.scratch, work.memory, work.threads) as database:
        return _fold_partition(database, work, partition)


def _fold_beside(database: Database, work: PartitionWork, partition: int) -> list[str]:
    """Fold a partition in a separate catalog of this DuckDB instance, because starting an instance takes 10 ms."""
    with database.cursor() as cursor:
        cursor.execute("ATTACH ':memory:' AS partition")
        cursor.execute("USE partition")
        written = _fold_partition(cursor, work, partition)
    database.execute("DETACH partition")
    return written


def _fold_partition(database: Database, work: PartitionWork, partition: int) -> list[str]:
    scratch = work.scratch
    for name in TASK_END_TABLES:
        path = table_path(scratch, merged_table_name(name), 0)
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM {parquet([path])}")
    for name in TASK_TABLES:
        merge_table(database, TABLES_BY_NAME[name], scratch, work.partitions, partition)
    written = []
    if work.extends:
        _keep_changed(database, work, partition)
        source = f"(SELECT * FROM {FOUND} SEMI JOIN changed USING (task_id, attempt))"
        write_table(database, scratch, SUPERSEDED, source, partition)
        written.append(SUPERSEDED)
    for name in TASK_TABLES:
        if name not in SERVED_AS_MERGED:
            write_table(database, scratch, merged_table_name(name), name, partition)
            written.append(merged_table_name(name))
    written += write_task_tables(database, scratch, work.closing, partition, extends=work.extends)
    write_key_tables(database, scratch, partition)
    return [*written, KEYS, DEPENDS, UNEXECUTED]


def _keep_changed(database: Database, work: PartitionWork, partition: int) -> None:
    """Delete the merged rows of attempts that did not change.

    Most events are read twice: from a pack while they are new, and later from an event object.
    """
    condition = work.partitions.condition(partition)
    for name in (*TASK_TABLES, FOUND, AFFECTED):
        paths = sorted((work.scratch / PREVIOUS_FOLDER).glob(f"{name}.*parquet"))
        source = f"SELECT * FROM {parquet(paths)} WHERE {condition}" if paths else f"SELECT * FROM {name} WHERE false"
        target = name if name in (FOUND, AFFECTED) else f"earlier_{name}"
        database.execute(f"CREATE TABLE {target} AS {source}")
    database.execute("CREATE TABLE new_profile_events AS FROM profile_events EXCEPT FROM earlier_profile_events")
    keys = [f"SELECT task_id, attempt FROM (FROM {name} EXCEPT FROM earlier_{name})" for name in _ONE_ROW_TABLES]
    # Without a definition, name and end of an attempt are those of its profile events.
    keys.append(f"SELECT task_id, attempt FROM new_profile_events ANTI JOIN {DEFINED_IN_TIME} USING (task_id, attempt)")
    keys.append(f"SELECT task_id, attempt FROM {AFFECTED}")
    # A part that was lost had replaced an older row: that is valid again, beside a newer one.
    keys.append(f"SELECT task_id, attempt FROM {FOUND} GROUP BY ALL HAVING count(*) > 1")
    database.execute(f"CREATE TABLE changed AS {' UNION '.join(keys)}")
    for name in _ONE_ROW_TABLES:
        database.execute(
            f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM {name} SEMI JOIN changed USING (task_id, attempt)"
        )


def write_key_tables(database: Database, scratch: Path, partition: int) -> None:
    """Write the tables by which later folds find the rows of a partition. Write the partition's `tasks` before."""
    tasks = table_path(scratch, "tasks", partition)
    write_table(database, scratch, KEYS, f"({keys_sql(tasks)})", partition)
    write_table(database, scratch, DEPENDS, f"({depends_sql(tasks)})", partition)
    write_table(database, scratch, UNEXECUTED, f"({unexecuted_sql(parquet([tasks]))})", partition)


def write_task_list(database: Database, scratch: Path, tasks: list[Path]) -> Path:
    """Write the table `task_list` of a part."""
    first_rows = [0, *accumulate(row_count(database, path) for path in tasks)]
    rows = task_list_rows_sql(list(zip(tasks, first_rows, strict=False)))
    return write_table(database, scratch, "task_list", f"({task_list_sql(rows)})")


def partition_inputs(work: PartitionWork, partition: int) -> list[Path]:
    """Return the input files for the fold of a partition."""
    scratch, file_number = work.scratch, work.partitions.file_number(partition)
    new = [path for name in TASK_TABLES for path in scratch.glob(f"{name}-{file_number}-*.parquet")]
    earlier = (*TASK_TABLES, FOUND, AFFECTED)
    previous = [path for name in earlier for path in (scratch / PREVIOUS_FOLDER).glob(f"{name}.*parquet")]
    return [*new, *previous, *(table_path(scratch, merged_table_name(name), 0) for name in TASK_END_TABLES)]


def _input_bytes(scratch: Path) -> int:
    return sum(
        path.stat().st_size for folder in (scratch, scratch / PREVIOUS_FOLDER) for path in folder.glob("*.parquet")
    )


def _input_files(scratch: Path, table: str) -> list[Path]:
    """Return the files of a table without partitions: new files, and files of the previous generation."""
    return sorted([*scratch.glob(f"{table}-0-*.parquet"), *(scratch / PREVIOUS_FOLDER).glob(f"{table}.*.parquet")])


def merge_table(
    database: Database, table: Table, scratch: Path, partitions: Partitions | None = None, partition: int = 0
) -> None:
    """Create the merged table: one row per key. Large tables are merged in several passes to bound memory."""
    database.execute(create_sql(table))
    partitions = partitions or Partitions()
    new = sorted(scratch.glob(f"{table.name}-{partitions.file_number(partition)}-*.parquet"))
    previous = sorted((scratch / PREVIOUS_FOLDER).glob(f"{table.name}.*.parquet"))
    condition = partitions.condition(partition)
    sources = [f"SELECT * FROM {parquet(paths)} WHERE {condition}" for paths in (new, previous) if paths]
    if not sources:
        return
    rows = f"({' UNION ALL BY NAME '.join(sources)})"
    passes = scalar(database, f"SELECT count(*) FROM {rows}") // _MAX_MERGED_ROWS + 1
    for number in range(passes):
        where = f"hash({table.keys[0]}) % {passes} = {number}" if passes > 1 else ""
        database.execute(f"INSERT INTO {table.name} {merge_sql(table, rows, where)}")


def write_task_tables(
    database: Database, scratch: Path, closing: Closing | None, partition: int, *, extends: bool = False
) -> dict[str, Path]:
    """Write the served task tables of one partition, from its merged tables in the database."""
    served = served_queries(closing)
    files = {"tasks": write_table(database, scratch, "tasks", f"({served['tasks']})", partition)}
    if extends:  # older profile events stay where they are
        database.execute("CREATE OR REPLACE TABLE profile_events AS FROM new_profile_events")
    for name in SERVED_TASK_TABLES:
        if name not in files:
            files[name] = write_table(database, scratch, name, f"({served[name]})", partition)
    return files


def _write_merged(database: Database, scratch: Path, names: Iterable[str]) -> Files:
    """Write merged tables for the next generation. Rows are sorted, so that equal tables become identical files."""
    return {
        merged_table_name(name): [
            write_table(database, scratch, merged_table_name(name), f"(FROM {name} ORDER BY ALL)")
        ]
        for name in names
    }


def write_small_tables(database: Database, scratch: Path, closing: Closing | None) -> Files:
    """Write the served tables that do not need task tables, except gaps and dashboard responses."""
    served = served_queries(closing)
    names = served.keys() - {"gaps", RESPONSES_TABLE, *SERVED_TASK_TABLES}
    return {name: [write_table(database, scratch, name, f"({served[name]})")] for name in names}


def _last_event_ns(database: Database) -> int:
    return scalar(database, "SELECT coalesce(max(last_ns), 0) FROM life_signs")


def _session_counts(database: Database, files: Files, task_counts: dict[str, int]) -> SessionCounts:
    def count(table: str) -> int:
        return scalar(database, f"SELECT count(*) FROM {parquet(files[table])}")

    jobs = database.execute(f"SELECT status, count(*) FROM {parquet(files['jobs'])} GROUP BY 1").fetchall()
    informational = [code.value for code in INFORMATIONAL_CODES]
    [(losses,)] = database.execute(
        "SELECT coalesce(sum(count), 0)::BIGINT FROM gaps WHERE NOT list_contains(?::VARCHAR[], kind)", [informational]
    ).fetchall()
    return SessionCounts(
        jobs=dict(jobs),
        tasks=task_counts["tasks"],
        failed_tasks=task_counts["failed_tasks"],
        actors=count("actors"),
        nodes=count("nodes"),
        gaps=min(losses, _MAX_COUNT),
        job_texts=[row[0] for row in database.execute(_job_texts_sql(files)).fetchall()],
    )


def _ray_version(database: Database, files: Files) -> str | None:
    responses = parquet(files[LAST_RESPONSES_TABLE])
    versions = database.execute(
        f"SELECT json_extract_string(body, '$.ray_version') FROM {responses} WHERE uri = '/api/version' "
        f"UNION ALL SELECT json_extract_string(body, '$.data.rayVersion') FROM {responses} "
        "WHERE uri = '/api/v0/cluster_metadata'"
    ).fetchall()
    return next((row[0] for row in versions if row[0]), None)


def _job_texts_sql(files: Files) -> str:
    """Return SQL for the texts that a search for sessions reads: those of the newest jobs, each cut in length."""
    parts = ", ".join(f"left({column}, {_MAX_JOB_TEXT})" for column in ("submission_id", "entrypoint", "metadata"))
    return (
        f"SELECT concat_ws(' ', job_id, {parts}) FROM {parquet(files['jobs'])} "
        f"ORDER BY start_time DESC NULLS LAST, job_id LIMIT {_MAX_JOB_TEXTS}"
    )
