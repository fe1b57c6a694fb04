"""Parquet files of the tables of an index."""

from pathlib import Path

import duckdb

Database = duckdb.DuckDBPyConnection
Files = dict[str, list[Path]]
"""The files of each table."""
_COPY_OPTIONS = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480, COMPRESSION_LEVEL 1"


def write_table(database: Database, scratch: Path, name: str, source: str, number: int = 0) -> Path:
    """Write the rows of a table or query to a separate file."""
    return copy_rows(database, source, table_path(scratch, name, number))


def copy_rows(database: Database, source: str, path: Path) -> Path:
    """Write the rows of a table or query to a file."""
    target = str(path).replace("'", "''")
    database.execute(f"COPY {source} TO '{target}' ({_COPY_OPTIONS})")
    return path


def row_count(database: Database, path: Path) -> int:
    """Return the number of rows of a file, from its metadata."""
    name = str(path).replace("'", "''")
    return int(database.execute(f"SELECT num_rows FROM parquet_file_metadata('{name}')").fetchall()[0][0])


def table_path(scratch: Path, name: str, number: int) -> Path:
    """Return the path of one file of a table in the scratch directory."""
    return scratch / f"written-{name}.{number}.parquet"


def scalar(database: Database, query: str) -> int:
    """Return the only value of a query."""
    return int(database.execute(query).fetchall()[0][0])
