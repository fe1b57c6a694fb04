"""Find the older rows that a fold of new objects needs: of attempts with new events or with a changed end.

Rows of all other attempts are not read and stay valid in their parts.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from rayhistory.events.table_columns import TASK_TABLES
from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.part_tables import (
    DEFINITIONS,
    DEPENDS,
    IS_OPEN,
    KEYS,
    UPDATES,
    PartFile,
    merged_rows_sql,
    rows_sql,
)
from rayhistory.index.fold.previous_index import PreviousIndex
from rayhistory.index.fold.table_files import Database, copy_rows
from rayhistory.index.manifest import Part
from rayhistory.index.sql_text import quoted

FOUND = "found"
"""A table with the location of the valid row of each attempt that may change: part, row number and flags."""
AFFECTED = "affected"
"""A table of the attempts whose served rows are derived again, because of a change outside of their own events.

The end of their worker, job or session has become known, or the process id of their worker.
"""

_MERGED_NAMES = {"task_definitions": DEFINITIONS, "task_updates": UPDATES, "profile_events": "profile_events"}
_WORKER_END = "worker_id, end_ms, dead_ns, exit_type, exit_detail"
_USES_PROCESS = "placed_pid IS NULL AND process_pid IS NOT NULL"
"""Condition for rows whose pid is known only from their worker's process."""
_NO_KEYS = "SELECT ''::VARCHAR AS task_id, 0::BIGINT AS attempt WHERE false"


class EarlierRows(msgspec.Struct):
    """The older rows that a fold of new objects needs: their parts, number and size."""

    touched_parts: set[str]
    """Parts that have older rows of the attempts that may change.

    If such a part is lost, the objects that this fold read must be read again.
    """
    rows: int
    size: int
    """Size of the files with older rows, which bounds the memory of the merge."""


def find_earlier_rows(
    database: Database, scratch: Path, folder: Path, previous: PreviousIndex, *, closing_changed: bool
) -> EarlierRows:
    """Find all attempts that may change, and write their older rows to `folder`, as files of the task tables."""
    superseded = previous.superseded()
    # Without a lost part, rows are valid again that do not know of ends since then.
    _find_changed_ends(database, folder, every=previous.has_lost_parts)
    _find_affected(database, previous, superseded, closing_changed=closing_changed or previous.has_lost_parts)
    _find_touched(database, scratch)
    places = _match_keys(database, previous, superseded)
    for name in (FOUND, AFFECTED):
        copy_rows(database, name, folder / f"{name}.parquet")
    paths = [folder / f"{table}.0.parquet" for table in TASK_TABLES]
    previous.prefetch(list(_MERGED_NAMES.values()), places)
    for table, path in zip(TASK_TABLES, paths, strict=True):
        files = previous.fetch_parts(_MERGED_NAMES[table], places)
        if files:
            replaced = superseded if table != "profile_events" else []
            rows = merged_rows_sql(files, replaced)
            copy_rows(database, f"(SELECT * FROM {rows} SEMI JOIN touched USING (task_id, attempt))", path)
    rows = database.execute("SELECT count(*) FROM touched").fetchall()[0][0]
    size = sum(path.stat().st_size for path in paths if path.exists())
    return EarlierRows({part.name for part, _ in places}, rows, size)


def _find_changed_ends(database: Database, folder: Path, *, every: bool) -> None:
    """Find workers and jobs with new information about their end, and workers whose process is now known.

    With `every`, also find workers and jobs whose end or process the previous generation knew.
    """

    def changed(name: str, table: str, columns: str, condition: str) -> None:
        earlier = parquet(sorted(folder.glob(f"{table}.*.parquet")))
        known = "" if every else f"EXCEPT SELECT {columns} FROM {earlier}"
        database.execute(
            f"CREATE TABLE {name} AS SELECT * FROM (SELECT {columns} FROM {table} WHERE {condition} {known})"
        )

    changed("ended_workers", "workers", _WORKER_END, "dead_ns IS NOT NULL OR end_ms IS NOT NULL")
    changed("known_processes", "workers", "worker_id, pid", "pid IS NOT NULL")
    changed("ended_jobs", "driver_jobs", "job_id, finished_ns", "finished_ns IS NOT NULL")


def _is_affected(is_open: str, uses_process: str, *, closing_changed: bool) -> str:
    ended = "worker_id IN (SELECT worker_id FROM ended_workers) OR job_id IN (SELECT job_id FROM ended_jobs)"
    return (
        f"({is_open} AND ({'true' if closing_changed else ended})) "
        f"OR ({uses_process} AND worker_id IN (SELECT worker_id FROM known_processes))"
    )


def _find_affected(
    database: Database, previous: PreviousIndex, superseded: list[str], *, closing_changed: bool
) -> None:
    condition = _is_affected("is_open", "true", closing_changed=closing_changed)
    wanted = []
    depends = previous.fetch_whole(DEPENDS)
    for part, files in _by_part(previous, depends):
        found = database.execute(f"SELECT count(*) FROM {parquet(files)} WHERE {condition}").fetchall()[0][0]
        if found:
            wanted.append(part)
    tasks = previous.fetch_whole("tasks", wanted)
    rows = _NO_KEYS
    if tasks:
        condition = _is_affected(f"({IS_OPEN})", _USES_PROCESS, closing_changed=closing_changed)
        rows = f"SELECT task_id, attempt_number AS attempt FROM {rows_sql(tasks, superseded)} WHERE {condition}"
    database.execute(f"CREATE TABLE {AFFECTED} AS {rows}")


def _find_touched(database: Database, scratch: Path) -> None:
    new = [path for table in TASK_TABLES for path in sorted(scratch.glob(f"{table}-*.parquet"))]
    keys = [f"SELECT task_id, attempt FROM {AFFECTED}"]
    keys += [f"SELECT task_id, attempt FROM {parquet(new)}"] if new else []
    distinct = f"SELECT DISTINCT task_id, attempt FROM ({' UNION ALL '.join(keys)})"
    database.execute(f"CREATE TABLE touched AS SELECT *, hash(task_id, attempt) AS h FROM ({distinct})")


def _match_keys(database: Database, previous: PreviousIndex, superseded: list[str]) -> list[tuple[Part, list[int]]]:
    """Look up the attempts that may change in the keys of all parts. Return the files with their rows, by part."""
    files = previous.fetch_whole(KEYS)
    # The key files of a part have the same ranges as its other files, but not the same numbers of rows.
    numbers = [(part, number) for part in previous.parts for number in range(len(part.files[KEYS]))]
    first_rows = [sum(file.rows for file in part.files["tasks"][:number]) for part, number in numbers]
    places = ", ".join(
        f"({quoted(file.path)}, {quoted(file.part)}, {number}, {first}::BIGINT)"
        for file, (_, number), first in zip(files, numbers, first_rows, strict=True)
    )
    database.execute(f"""
        CREATE TABLE matched AS
        SELECT p.part, p.number, t.task_id, t.attempt, if(k.row >= 0, k.row + p.first_row, k.row) AS row, k.flags
        FROM {parquet([file.path for file in files], ", filename = true")} k
        JOIN touched t USING (h) JOIN (VALUES {places}) p (path, part, number, first_row) ON k.filename = p.path""")
    valid = f"ANTI JOIN {parquet(superseded)} USING (part, task_id, attempt)" if superseded else ""
    database.execute(
        f"CREATE TABLE {FOUND} AS SELECT part, task_id, attempt, row, flags "
        f"FROM (SELECT * FROM matched WHERE row IS NOT NULL) {valid}"
    )
    matched = set(database.execute("SELECT DISTINCT part, number FROM matched").fetchall())
    wanted = [(part, [n for n in range(len(part.files[KEYS])) if (part.name, n) in matched]) for part in previous.parts]
    return [(part, chosen) for part, chosen in wanted if chosen]


def _by_part(previous: PreviousIndex, files: Iterable[PartFile]) -> Iterator[tuple[Part, list[str]]]:
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.part, []).append(file.path)
    return ((part, paths[part.name]) for part in previous.parts if part.name in paths)
