"""The database of queries reads files as they are."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rayhistory.index.query.database import execute


def test_temporary_directory_may_have_an_apostrophe(tmp_path: Path) -> None:
    """A new process, because each has one database."""
    directory = tmp_path / "it's"
    directory.mkdir()
    script = "from rayhistory.index.query.database import execute; print(execute('SELECT 1 AS one', []))"
    environment = os.environ | {"TMPDIR": str(directory)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("[{'one': 1}]\n", "")


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
