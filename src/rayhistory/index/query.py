"""One query layer over the tables of an index: filter, sort, page, count, group. Nobody else writes SQL for serving."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import duckdb
import msgspec

from rayhistory.errors import DamagedIndex, StoreUnavailable, UsageError
from rayhistory.index.derive import TASK_LIST
from rayhistory.index.manifest import Manifest

Row = dict[str, Any]
T = TypeVar("T")

_LISTED = set(TASK_LIST)
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


class Fetch(Protocol):
    async def __call__(self, name: str, *, again: bool) -> Path:
        """The local copy of a table."""


class OpenIndex:
    """The tables of one generation. They may leave the local cache at any time, and come back when they are needed."""

    def __init__(self, manifest: Manifest, fetch: Fetch) -> None:
        self.manifest = manifest
        self._fetch = fetch
        self._columns: dict[str, dict[str, str]] = {}

    async def rows(self, query: Query) -> list[Row]:
        return await self._run(query, self._rows, query.columns or ("*",))

    async def count(self, query: Query) -> int:
        return await self._run(query, self._count, ())

    async def group(self, query: Query, by: tuple[str, ...]) -> list[Row]:
        """Number of rows (`count`) per distinct value of the columns."""
        return await self._run(query, lambda query, source: self._group(query, source, by), by)

    async def _run(self, query: Query, work: Callable[[Query, str], T], by: tuple[str, ...]) -> T:
        """`by` names the columns that are asked for."""
        if query.table not in self.manifest.files:
            raise UsageError(f"no table {query.table!r}")
        file = _best_file(query, by)
        for again in (False, True):
            path = await self._fetch(file, again=again)
            try:
                return await asyncio.to_thread(work, query, f"read_parquet('{path}')")
            except duckdb.OutOfMemoryException as error:
                raise StoreUnavailable(f"too much is asked at once: {error}") from error
            except duckdb.Error as error:
                if again or not isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
                    raise DamagedIndex(f"table {query.table} cannot be read: {error}") from error
        raise AssertionError

    def _rows(self, query: Query, source: str) -> list[Row]:
        types = self._types(source)
        columns = ", ".join(_known(types, query.table, name) for name in query.columns) or "*"
        where, values = _where(types, query)
        sql = f"SELECT {columns} FROM {source}{where}{_order(types, query)}"
        if query.limit is not None:
            sql += f" LIMIT {int(query.limit)}"
        if query.offset:
            sql += f" OFFSET {int(query.offset)}"
        return _execute(sql, values)

    def _count(self, query: Query, source: str) -> int:
        where, values = _where(self._types(source), query)
        return int(_execute(f"SELECT count(*) AS n FROM {source}{where}", values)[0]["n"])

    def _group(self, query: Query, source: str, by: tuple[str, ...]) -> list[Row]:
        types = self._types(source)
        columns = ", ".join(_known(types, query.table, name) for name in by)
        where, values = _where(types, query)
        return _execute(f"SELECT {columns}, count(*) AS count FROM {source}{where} GROUP BY {columns}", values)

    def _types(self, source: str) -> dict[str, str]:
        """Names and types of a table's columns."""
        if source not in self._columns:
            described = _execute(f"DESCRIBE SELECT * FROM {source}", [])
            self._columns[source] = {row["column_name"]: row["column_type"] for row in described}
        return self._columns[source]


def _best_file(query: Query, columns: tuple[str, ...]) -> str:
    """Tasks are kept twice: whole, by id; and what lists need, by state and time; that is smaller and prunes better."""
    if query.table != "tasks" or any(f.column == "task_id" and f.operator == "=" for f in query.filters):
        return query.table
    needed = {*columns, *(f.column for f in query.filters), *(name.lstrip("-") for name in query.sort)}
    return "task_list" if needed <= _LISTED else "tasks"


def _known(types: dict[str, str], table: str, column: str) -> str:
    if column not in types:
        raise UsageError(f"table {table!r} has no column {column!r}")
    return column


def _order(types: dict[str, str], query: Query) -> str:
    terms = [
        f"{_known(types, query.table, name.lstrip('-'))} {'DESC' if name.startswith('-') else 'ASC'} NULLS LAST"
        for name in query.sort
    ]
    return f" ORDER BY {', '.join(terms)}" if terms else ""


def _where(types: dict[str, str], query: Query) -> tuple[str, list[Any]]:
    terms, values = [], []
    for condition in query.filters:
        column = _known(types, query.table, condition.column)
        term, more = _condition(column, types[column] == "VARCHAR", condition)
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
                _root.execute(f"SET temp_directory = '{tempfile.gettempdir()}/rayhistory-query-{os.getpid()}'")
                _root.execute("SET autoinstall_known_extensions = false")
            _local.cursor = _root.cursor()
    return _local.cursor  # type: ignore[no-any-return]


def _execute(sql: str, values: list[Any]) -> list[Row]:
    cursor = _connection().execute(sql, values)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
