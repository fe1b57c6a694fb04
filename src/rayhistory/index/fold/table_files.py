"""Parquet files of the tables of an index."""

from pathlib import Path

import duckdb

Database = duckdb.DuckDBPyConnection
_COPY_OPTIONS = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480, COMPRESSION_LEVEL 1"


def write_table(database: Database, scratch: Path, name: str, source: str, number: int = 0) -> Path:
    """Write the rows of a table or query to a file of its own."""
    path = table_path(scratch, name, number)
    database.execute(f"COPY {source} TO '{path}' ({_COPY_OPTIONS})")
    return path


def table_path(scratch: Path, name: str, number: int) -> Path:
    """Return the path of one file of a table in the scratch directory."""
    return scratch / f"written-{name}.{number}.parquet"
