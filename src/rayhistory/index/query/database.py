"""The process-wide DuckDB database that queries run in."""

import os
import tempfile
import threading
from typing import Any

import duckdb

from rayhistory.index.query.query import Row

_FETCH_ROWS = 1_000

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
                _root.execute(f"SET temp_directory = '{tempfile.gettempdir()}/rayhistory-query-{os.getpid()}'")
                _root.execute("SET autoinstall_known_extensions = false")
            _local.cursor = _root.cursor()
    return _local.cursor  # type: ignore[no-any-return]


def execute(sql: str, values: list[Any]) -> list[Row]:
    cursor = connection().execute(sql, values)
    names = [column[0] for column in cursor.description or []]
    rows: list[Row] = []
    while batch := cursor.fetchmany(_FETCH_ROWS):
        rows += [dict(zip(names, row, strict=True)) for row in batch]
    return rows
