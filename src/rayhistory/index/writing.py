"""Tables of an index as files."""

from pathlib import Path

import duckdb

Database = duckdb.DuckDBPyConnection
_FORM = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480, COMPRESSION_LEVEL 1"


def write(database: Database, scratch: Path, name: str, source: str, part: int = 0) -> Path:
    path = written(scratch, name, part)
    database.execute(f"COPY {source} TO '{path}' ({_FORM})")
    return path


def written(scratch: Path, name: str, part: int) -> Path:
    """Where a part of a table is written to."""
    return scratch / f"written-{name}.{part}.parquet"
