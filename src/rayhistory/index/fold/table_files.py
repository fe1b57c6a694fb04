"""DuckDB databases of a fold, and the Parquet files that they write: the tables of an index."""

import functools
import os
from pathlib import Path

import duckdb

from rayhistory.index.sql_text import quoted

Database = duckdb.DuckDBPyConnection
Files = dict[str, list[Path]]
"""The files of each table."""
_COPY_OPTIONS = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480, COMPRESSION_LEVEL 1"


_MIN_MEMORY = 128 << 20
_DUCKDB_MEMORY_SHARE = 0.7


def open_database(scratch: Path, memory: int, threads: int) -> Database:
    database = duckdb.connect()
    for option, value in {
        "memory_limit": f"{max(_MIN_MEMORY, int(memory * _DUCKDB_MEMORY_SHARE)) >> 20}MiB",
        "threads": str(threads),
        "temp_directory": str(scratch / f"spilled-{os.getpid()}"),  # processes must not share it
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }.items():
        database.execute(f"SET {option} = {quoted(value)}")
    return database


def shared_database() -> Database:
    """Return a cursor on a database of this process, for queries that need neither tables nor memory."""
    return _shared_instance().cursor()


@functools.cache
def _shared_instance() -> Database:
    return duckdb.connect(config={"threads": 1})


def write_table(database: Database, scratch: Path, name: str, source: str, number: int = 0) -> Path:
    """Write the rows of a table or query to a separate file."""
    return copy_rows(database, source, table_path(scratch, name, number))


def copy_rows(database: Database, source: str, path: Path) -> Path:
    """Write the rows of a table or query to a file."""
    database.execute(f"COPY {source} TO {quoted(path)} ({_COPY_OPTIONS})")
    return path


def row_count(database: Database, path: Path) -> int:
    """Return the number of rows of a file, from its metadata."""
    return int(database.execute(f"SELECT num_rows FROM parquet_file_metadata({quoted(path)})").fetchall()[0][0])


def table_path(scratch: Path, name: str, number: int) -> Path:
    """Return the path of one file of a table in the scratch directory."""
    return scratch / f"written-{name}.{number}.parquet"


def scalar(database: Database, query: str) -> int:
    """Return the value of a query whose result has one row and one column."""
    return int(database.execute(query).fetchall()[0][0])
