"""One query layer over the tables of an index: filter, sort, page, count, group. Nobody else writes SQL for serving."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.errors import UsageError
from rayhistory.index.manifest import Manifest

Row = dict[str, Any]

_OPERATORS = {"=", "!=", "<", "<=", ">", ">=", "contains", "prefix", "in"}


class Filter(msgspec.Struct, frozen=True):
    """A condition on one column. As in Ray, case does not matter, and nothing differs from something."""

    column: str
    operator: str
    value: Any


class Query(msgspec.Struct, frozen=True):
    table: str
    columns: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    sort: tuple[str, ...] = ()
    """Column names; a leading minus means descending."""
    limit: int | None = None
    offset: int = 0


class OpenIndex:
    """The tables of one generation, on local disk."""

    def __init__(self, manifest: Manifest, files: dict[str, Path]) -> None:
        self.manifest = manifest
        self._files = files
        self._columns: dict[str, dict[str, str]] = {}

    async def rows(self, query: Query) -> list[Row]:
        return await asyncio.to_thread(self._rows, query)

    async def count(self, query: Query) -> int:
        return await asyncio.to_thread(self._count, query)

    async def group(self, query: Query, by: tuple[str, ...]) -> list[Row]:
        """Number of rows (`count`) per distinct value of the columns."""
        return await asyncio.to_thread(self._group, query, by)

    def columns(self, table: str) -> dict[str, str]:
        """Names and types of a table's columns."""
        if table not in self._columns:
            if table not in self._files:
                raise UsageError(f"no table {table!r}")
            described = _execute(f"DESCRIBE SELECT * FROM {self._source(table)}", [])
            self._columns[table] = {row["column_name"]: row["column_type"] for row in described}
        return self._columns[table]

    def _rows(self, query: Query) -> list[Row]:
        columns = ", ".join(self._known(query.table, name) for name in query.columns) or "*"
        where, values = self._where(query)
        sql = f"SELECT {columns} FROM {self._source(query.table)}{where}{self._order(query)}"
        if query.limit is not None:
            sql += f" LIMIT {int(query.limit)}"
        if query.offset:
            sql += f" OFFSET {int(query.offset)}"
        return _execute(sql, values)

    def _count(self, query: Query) -> int:
        where, values = self._where(query)
        return int(_execute(f"SELECT count(*) AS n FROM {self._source(query.table)}{where}", values)[0]["n"])

    def _group(self, query: Query, by: tuple[str, ...]) -> list[Row]:
        columns = ", ".join(self._known(query.table, name) for name in by)
        where, values = self._where(query)
        source = self._source(query.table)
        return _execute(f"SELECT {columns}, count(*) AS count FROM {source}{where} GROUP BY {columns}", values)

    def _source(self, table: str) -> str:
        return f"read_parquet('{self._files[table]}')"

    def _known(self, table: str, column: str) -> str:
        if column not in self.columns(table):
            raise UsageError(f"table {table!r} has no column {column!r}")
        return column

    def _order(self, query: Query) -> str:
        terms = [
            f"{self._known(query.table, name.lstrip('-'))} {'DESC' if name.startswith('-') else 'ASC'} NULLS LAST"
            for name in query.sort
        ]
        return f" ORDER BY {', '.join(terms)}" if terms else ""

    def _where(self, query: Query) -> tuple[str, list[Any]]:
        terms, values = [], []
        for condition in query.filters:
            column = self._known(query.table, condition.column)
            term, more = _condition(column, self.columns(query.table)[column] == "VARCHAR", condition)
            terms.append(term)
            values += more
        return (f" WHERE {' AND '.join(terms)}" if terms else ""), values


def _condition(column: str, is_text: bool, condition: Filter) -> tuple[str, list[Any]]:
    operator, value = condition.operator, condition.value
    if operator not in _OPERATORS:
        raise UsageError(f"unknown operator {operator!r}: use one of {', '.join(sorted(_OPERATORS))}")
    fold = is_text and isinstance(value, str)
    left, right = (f"lower({column})", "lower(?)") if fold else (column, "?")
    if operator == "=":
        return (f"{column} IS NULL", []) if value is None else (f"{left} = {right}", [value])
    if operator == "!=":
        return (f"{column} IS NOT NULL", []) if value is None else (f"{left} IS DISTINCT FROM {right}", [value])
    if operator == "in":
        return f"{column} IN (SELECT unnest(?))", [list(value)]
    if operator == "contains":
        return f"contains(lower({column}::VARCHAR), lower(?))", [str(value)]
    if operator == "prefix":
        return f"starts_with(lower({column}::VARCHAR), lower(?))", [str(value)]
    return f"{column} {operator} ?", [value]


_local = threading.local()
_root: duckdb.DuckDBPyConnection | None = None
_root_lock = threading.Lock()


def _connection() -> duckdb.DuckDBPyConnection:
    """One database for the process, one cursor for each thread that asks."""
    global _root  # noqa: PLW0603
    if not hasattr(_local, "cursor"):
        with _root_lock:
            if _root is None:
                _root = duckdb.connect(":memory:")
                _root.execute("SET memory_limit = '256MiB'")
                _root.execute("SET threads = 2")
                _root.execute("SET autoinstall_known_extensions = false")
            _local.cursor = _root.cursor()
    return _local.cursor  # type: ignore[no-any-return]


def _execute(sql: str, values: list[Any]) -> list[Row]:
    cursor = _connection().execute(sql, values)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
