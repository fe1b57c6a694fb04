"""The tables of one index generation as SQL sources, made of local copies of their files."""

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import msgspec

from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.part_tables import SUPERSEDED, PartFile, rows_sql
from rayhistory.index.fold.served_tables import TASK_END_TABLES, TASK_LIST_COLUMNS, merged_table_name
from rayhistory.index.fold.served_tasks import AS_OF_COLUMNS, profiles_as_of_sql, tasks_as_of_sql
from rayhistory.index.manifest import Manifest
from rayhistory.index.sql_text import quoted

TASK_ROW_TABLES = ("tasks", "task_list")
"""Tables with one row per attempt. Rows of later parts replace rows of earlier parts."""
AS_OF_VIEWS = (*TASK_ROW_TABLES, "profile_events")
"""Tables whose rows as of a point in time are computed while they are read."""
_END_TABLES = tuple(map(merged_table_name, TASK_END_TABLES))

Copies = dict[str, list[Path]]
"""Local copies of the files of some tables."""


class TableSources:
    """Tables in their latest state."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def needed(self, tables: Iterable[str]) -> list[str]:
        """Return the tables that must also be read to get the rows of these tables."""
        return [SUPERSEDED] if any(map(self.has_superseded, tables)) else []

    def is_stored(self, table: str) -> bool:
        """Return True if the stored files of a table have exactly its rows, apart from superseded ones."""
        return True

    def has_superseded(self, table: str) -> bool:
        return table in TASK_ROW_TABLES and any(part.superseded for part in self._manifest.parts)

    def superseded_rows(self, table: str, source: str) -> str:
        """Return the query of the file number and row number of each superseded row in the files of a table.

        `source` is the SQL source of the table `merged.superseded`, which lists these rows by part.
        """
        places, number = list[str](), 0
        for part in self._manifest.parts:
            first = 0
            for file in part.files.get(table, ()):
                places.append(f"({quoted(part.name)}, {number}, {first}, {first + file.rows})")
                first, number = first + file.rows, number + 1
        return (
            f"SELECT place.file, s.row - place.first AS row FROM {source} s "
            f"JOIN (VALUES {', '.join(places)}) place (part, file, first, past) "
            "ON s.part = place.part AND s.row >= place.first AND s.row < place.past"
        )

    def hidden(self, table: str) -> tuple[str, ...]:
        """Return the hidden columns in the files of a table."""
        return AS_OF_COLUMNS if table == "tasks" and table not in self._manifest.files else ()

    def source(self, table: str, numbers: list[int], paths: list[Path], others: Copies) -> str:
        """Return the SQL source of the valid rows in some files of a table; `others` are copies of `needed` tables."""
        if table not in TASK_ROW_TABLES or table in self._manifest.files:
            return parquet(paths)
        files, superseded = self._part_files(table, numbers, paths), list(map(str, others.get(SUPERSEDED, [])))
        if table == "task_list":
            return rows_sql(files, superseded, position="position")
        return rows_sql(files, superseded, hidden=self.hidden(table))

    def _part_files(self, table: str, numbers: list[int], paths: list[Path]) -> list[PartFile]:
        """Return the files with their parts, and the row number in `tasks` of their first row."""
        found = []
        for part in self._manifest.parts:
            files = part.files.get(table, ())
            first_rows = accumulate((file.rows for file in files), initial=0)
            found += [
                PartFile(part.name, "", first, part.superseded > 0) for _, first in zip(files, first_rows, strict=False)
            ]
        return [
            msgspec.structs.replace(found[number], path=str(path)) for number, path in zip(numbers, paths, strict=True)
        ]


class AsOfSources(TableSources):
    """Tables as of a point in time. Rows of tasks are computed while they are read, from the files of `tasks`."""

    def __init__(self, manifest: Manifest, ns: int) -> None:
        super().__init__(manifest)
        self._ns = ns

    def needed(self, tables: Iterable[str]) -> list[str]:
        tables = set(tables)
        ends = _END_TABLES if tables.intersection(TASK_ROW_TABLES) else ()
        return [*super().needed(tables), *ends]

    def is_stored(self, table: str) -> bool:
        return table not in AS_OF_VIEWS

    def source(self, table: str, numbers: list[int], paths: list[Path], others: Copies) -> str:
        if table == "profile_events":
            return profiles_as_of_sql(parquet(paths), self._ns)
        if table not in TASK_ROW_TABLES:
            return parquet(paths)
        files, superseded = self._part_files(table, numbers, paths), list(map(str, others.get(SUPERSEDED, [])))
        workers, jobs = (parquet(others[name]) for name in _END_TABLES)
        tasks = tasks_as_of_sql(rows_sql(files, superseded), workers, jobs, self._ns)
        return f"(SELECT {', '.join(TASK_LIST_COLUMNS)} FROM {tasks})" if table == "task_list" else tasks
