"""The database of queries reads files as they are."""

import os
from pathlib import Path

import duckdb
import pytest

from rayhistory.index.query.database import execute


def test_repaired_file_is_read_again_at_once(tmp_path: Path) -> None:
    """Within one second, the file system may give the new file the inode of the old one."""
    path = tmp_path / "table.parquet"
    query = f"SELECT count(*) AS count FROM read_parquet('{path}')"
    duckdb.connect().execute(f"COPY (FROM range(7)) TO '{path}' (FORMAT parquet)")
    good, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(b"x" * len(good))
    os.utime(path, ns=times)
    with pytest.raises(duckdb.InvalidInputException):
        execute(query, [])
    path.write_bytes(good)
    os.utime(path, ns=times)
    assert execute(query, []) == [{"count": 7}]
