"""The process-wide DuckDB database that queries run in."""

import os
import tempfile
import threading
from typing import Any

import duckdb

from rayhistory.index.query.query import Row
from rayhistory.index.sql_text import quoted

_FIRST_FETCH_ROWS = 64
_FETCH_ROWS = 1_000
_MIN_MEMORY_BYTES = 128 << 20
"""Minimum memory limit of the database. With less, DuckDB cannot even open a table."""

_TEXT = duckdb.type("VARCHAR")
"""DuckDB's text type. It is created once, because duckdb.type() can deadlock with a query on the default connection."""

_local = threading.local()
_root: duckdb.DuckDBPyConnection | None = None
_root_lock = threading.Lock()


def connection() -> duckdb.DuckDBPyConnection:
    """Return this thread's cursor on the shared database."""
    global _root  # noqa: PLW0603
    if not hasattr(_local, "cursor"):
        with _root_lock:
            if _root is None:
                _root = duckdb.connect(":memory:")
                _root.execute("SET memory_limit = '224MiB'")
                _root.execute("SET threads = 2")
                spilled = f"{tempfile.gettempdir()}/rayhistory-query-{os.getpid()}"
                _root.execute(f"SET temp_directory = {quoted(spilled)}")
                _root.execute("SET autoinstall_known_extensions = false")
                # It takes a file for unchanged if inode and second are the same: a repaired copy stays damaged.
                _root.execute("SET enable_external_file_cache = false")
            _local.cursor = _root.cursor()
    return _local.cursor  # type: ignore[no-any-return]


def set_limits(memory_bytes: int, threads: int) -> None:
    """Change the limits of a process that serves no requests, such as the build of a product."""
    connection().execute(f"SET memory_limit = '{max(memory_bytes, _MIN_MEMORY_BYTES) >> 20}MiB'")
    connection().execute(f"SET threads = {int(threads)}")


def execute(sql: str, values: list[Any]) -> list[Row]:
    return execute_within(sql, values, None)[0]


def execute_within(sql: str, values: list[Any], max_bytes: int | None) -> tuple[list[Row], bool]:
    """Run a query. Return all rows and True, or the first rows with about `max_bytes` of text and False.

    Rows are fetched a few at a time, because a thousand rows may be a gigabyte.
    """
    cursor = connection().execute(sql, values)
    columns = cursor.description or []
    names = [column[0] for column in columns]
    texts = [number for number, column in enumerate(columns) if column[1] == _TEXT]
    rows: list[Row] = []
    size, count = 0, _FETCH_ROWS if max_bytes is None else _FIRST_FETCH_ROWS
    while batch := cursor.fetchmany(count):
        rows += [dict(zip(names, row, strict=True)) for row in batch]
        if max_bytes is not None:
            size += sum(len(row[number] or "") for row in batch for number in texts)
            if size >= max_bytes:
                return rows, False
            count = min(_FETCH_ROWS, (max_bytes - size) * len(rows) // max(size, 1) + 1)
    return rows, True
