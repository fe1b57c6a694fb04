"""Tables of a part. With them, later folds find its rows, and readers leave out the rows that it replaces.

- `merged.keys` has the hash of each attempt in the part, its row in `tasks`, and its flags for counts. Later folds
  find older rows with it.
- `merged.depends` has the workers and jobs whose end would change rows of the part.
- `merged.unexecuted` has tasks that ended without having run. Depending on the end of their worker, they count as gaps.
- `merged.superseded` lists the rows of other parts that this part replaces. Each attempt is valid in one part only.
"""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rayhistory.gaps import GapCode
from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.served_tables import GAP_CONDITIONS, HAS_NO_EXECUTION, merged_table_name
from rayhistory.index.fold.table_files import Database, scalar, shared_database
from rayhistory.index.manifest import MERGED_PREFIX
from rayhistory.index.sql_text import quoted

KEYS = MERGED_PREFIX + "keys"
DEPENDS = MERGED_PREFIX + "depends"
SUPERSEDED = MERGED_PREFIX + "superseded"
UNEXECUTED = MERGED_PREFIX + "unexecuted"

DEFINITIONS = merged_table_name("task_definitions")
UPDATES = merged_table_name("task_updates")
REPLACED_TABLES = (DEFINITIONS, UPDATES)
"""Merged tables in which only one part has valid rows of an attempt. Several parts can have its profile events."""

TASK_COUNTS: dict[str, str] = {
    "rows": "true",
    "tasks": "type <> 'DRIVER_TASK'",
    "failed_tasks": "state = 'FAILED' AND type <> 'DRIVER_TASK' AND NOT closed_by_history",
    **{code.value: condition for code, (table, condition) in GAP_CONDITIONS.items() if table == "tasks"},
}
"""Conditions by which tasks are counted. Each is one bit of `flags`, so that tasks are counted from keys alone."""

TASK_GAPS = tuple(code for code in GAP_CONDITIONS if code.value in TASK_COUNTS)

_FLAGS = " + ".join(
    f"coalesce({condition}, false)::INTEGER * {1 << bit}" for bit, condition in enumerate(TASK_COUNTS.values())
)
IS_OPEN = "finished_ns IS NULL AND failed_ns IS NULL"


def keys_sql(tasks: Path) -> str:
    """Return the query of `merged.keys` for a file of `tasks` and its merged tables.

    An attempt that is in the merged tables and not in `tasks` has row -1. If the part has only profile events of an
    attempt, its row is NULL.
    """
    rows = (
        f"SELECT hash(task_id, attempt_number) AS h, file_row_number AS row, {_FLAGS} AS flags FROM {_numbered(tasks)}"
    )
    for table, row in {"task_definitions": "-1", "task_updates": "-1", "profile_events": "NULL"}.items():
        rows += f" UNION ALL SELECT hash(task_id, attempt), {row}, 0 FROM {table}"
    return f"SELECT h, max(row)::INTEGER AS row, max(flags)::INTEGER AS flags FROM ({rows}) GROUP BY h ORDER BY h"


def depends_sql(tasks: Path) -> str:
    """Return the query of `merged.depends` for a file of `tasks`."""
    return (
        f"SELECT DISTINCT worker_id, if({IS_OPEN}, job_id, NULL) AS job_id, {IS_OPEN} AS is_open "
        f"FROM {parquet([tasks])} ORDER BY ALL"
    )


def unexecuted_sql(tasks: str) -> str:
    """Return SQL for `merged.unexecuted`: attempts without a reported execution."""
    columns = "task_id, attempt_number AS attempt, worker_id, actor_id, end_time_ms"
    return f"SELECT {columns} FROM {tasks} WHERE {HAS_NO_EXECUTION} ORDER BY ALL"


def count_tasks(database: Database, tasks: str) -> dict[str, int]:
    """Count the rows of `tasks` by each condition."""
    return count_flags(database, f"(SELECT {_FLAGS} AS flags FROM {tasks})")


def count_flags(database: Database, source: str) -> dict[str, int]:
    """Count the rows of a source by the bits of `flags`."""
    sums = ", ".join(f"count(*) FILTER (flags & {1 << bit} <> 0)" for bit in range(len(TASK_COUNTS)))
    return dict(zip(TASK_COUNTS, database.execute(f"SELECT {sums} FROM {source}").fetchall()[0], strict=True))


def open_gaps(counts: dict[str, int]) -> dict[GapCode, int]:
    return {code: counts[code.value] for code in TASK_GAPS if counts.get(code.value)}


@functools.cache
def key_hash() -> int:
    """Return a hash that changes if another release of DuckDB hashes keys differently."""
    with shared_database() as database:
        return scalar(database, "SELECT hash('rayhistory', 1::BIGINT) % 1000000007")


class PartFile(msgspec.Struct, frozen=True):
    """A local copy of a file of a part."""

    part: str
    path: str
    first_row: int = 0
    """Number of rows of this table in the part's files before this one."""
    is_superseded: bool = False
    """True if another part replaces some rows of the part."""


def rows_sql(
    files: Sequence[PartFile], superseded: Sequence[str], *, position: str = "", hidden: Sequence[str] = ()
) -> str:
    """Return an SQL source with the valid rows of `tasks` in these files, without hidden columns.

    `position` is the column with each row's number in `tasks`. Only the table `task_list` has such a column.
    """
    excluded = [*hidden, *([position] if position else [])]
    others = f" EXCLUDE ({', '.join(excluded)})" if excluded else ""
    clean = [file.path for file in files if not file.is_superseded]
    replaced = [file for file in files if file.is_superseded]
    if not (replaced and superseded):
        source = parquet([file.path for file in files])
        return f"(SELECT *{others} FROM {source})" if excluded else source
    row = position or "file_row_number"
    exclude = ", ".join(dict.fromkeys(("filename", row, *hidden)))
    places = ", ".join(f"({quoted(file.part)}, {quoted(file.path)}, {file.first_row}::BIGINT)" for file in replaced)
    dead = f"""(SELECT place.path, s.row - place.first_row AS row FROM {parquet(superseded)} s
      JOIN (VALUES {places}) place (part, path, first_row) USING (part) WHERE s.row >= place.first_row)"""
    rows = f"read_parquet({_list(file.path for file in replaced)}, filename = true{'' if position else _ROW_NUMBER})"
    valid = (
        f"SELECT r.* EXCLUDE ({exclude}) FROM {rows} r ANTI JOIN {dead} d ON r.filename = d.path AND r.{row} = d.row"
    )
    if not clean:
        return f"({valid})"
    return f"(SELECT *{others} FROM {parquet(clean)} UNION ALL BY NAME {valid})"


def merged_rows_sql(files: Sequence[PartFile], superseded: Sequence[str], condition: str = "true") -> str:
    """Return an SQL source with the valid rows of a merged table in these files."""
    clean = [file.path for file in files if not file.is_superseded]
    replaced = [file for file in files if file.is_superseded]
    if not (replaced and superseded):
        return f"(SELECT * FROM {parquet([file.path for file in files])} WHERE {condition})"
    places = ", ".join(f"({quoted(file.part)}, {quoted(file.path)})" for file in replaced)
    dead = f"""(SELECT path, task_id, attempt FROM {parquet(superseded)}
      JOIN (VALUES {places}) place (part, path) USING (part))"""
    rows = f"(SELECT * FROM read_parquet({_list(file.path for file in replaced)}, filename = true) WHERE {condition})"
    same = "r.filename = d.path AND r.task_id = d.task_id AND r.attempt = d.attempt"
    valid = f"SELECT r.* EXCLUDE (filename) FROM {rows} r ANTI JOIN {dead} d ON {same}"
    if not clean:
        return f"({valid})"
    return f"(SELECT * FROM {parquet(clean)} WHERE {condition} UNION ALL BY NAME {valid})"


def task_list_rows_sql(tasks: Sequence[tuple[Path, int]]) -> str:
    """Return SQL that selects all rows of these `tasks` files; `position` is the row's number in the part."""
    rows = (f"SELECT *, file_row_number + {first} AS position FROM {_numbered(path)}" for path, first in tasks)
    return f"({' UNION ALL '.join(rows)})"


_ROW_NUMBER = ", file_row_number = true"


def _numbered(path: Path) -> str:
    return parquet([path], _ROW_NUMBER)


def _list(paths: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, paths))}]"
