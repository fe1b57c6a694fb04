"""Run one SQL query in a separate process: `python -m rayhistory.index.query.sql_process`, with a SqlJob on stdin.

A query may need any amount of memory and time. The process has limits, and can be killed at any time.
"""

import os
import resource
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.errors import UsageError, disk_full_error
from rayhistory.index.child_process import start_work
from rayhistory.index.query.sql_sandbox import (
    SqlLimits,
    TableSources,
    check_query,
    duckdb_message,
    execute,
    open_sandbox,
)

_MAX_COLUMNS = 1_000
_NICENESS = 5
_BATCH_ROWS = 100
_MEMORY_BESIDE_DUCKDB = 512 << 20
"""Address space for Python, and for memory that DuckDB does not count in its limit."""
_ADDRESS_SPACE_FACTOR = 4


class SqlJob(msgspec.Struct):
    query: str
    sources: TableSources
    limits: SqlLimits
    scratch: str
    max_rows: int
    max_bytes: int


class SqlResult(msgspec.Struct):
    """Rows of a query, or the reason of a failure."""

    columns: list[str] = []
    rows: list[dict[str, Any]] = []
    complete: bool = True
    """False if the result was cut at a limit."""
    problem: str = ""
    unreadable: bool = False
    """True if a file of a table could not be read, so that the caller should try again."""
    disk_full: bool = False


def run_query(job: SqlJob) -> SqlResult:
    """Run a query in the sandbox, up to the limits of rows and bytes."""
    try:
        check_query(job.query)
        with open_sandbox(job.sources, job.limits, Path(job.scratch)) as database:
            return _fetch(execute(database, job.query), job)
    except duckdb.InterruptException:
        return SqlResult(problem=f"query cancelled after {job.limits.timeout_s:g} s: use a query that reads fewer rows")
    except (duckdb.OutOfMemoryException, MemoryError):
        return SqlResult(
            problem=f"query needs more than {job.limits.memory >> 20} MiB: use a query that reads fewer rows"
        )
    except duckdb.IOException as error:
        full = disk_full_error(error) is not None
        return SqlResult(problem=duckdb_message(error), unreadable=not full, disk_full=full)
    except duckdb.Error as error:
        return SqlResult(problem=duckdb_message(error))
    except UsageError as error:
        return SqlResult(problem=str(error))


def _fetch(cursor: duckdb.DuckDBPyConnection, job: SqlJob) -> SqlResult:
    names = _unique([column[0] for column in cursor.description or []])
    if len(names) > _MAX_COLUMNS:
        return SqlResult(problem=f"query returns {len(names):,} columns: select at most {_MAX_COLUMNS:,}")
    result, size = SqlResult(names), 0
    while batch := cursor.fetchmany(_BATCH_ROWS):
        for values in batch:
            row = dict(zip(names, values, strict=True))
            size += len(msgspec.json.encode(row, enc_hook=str))
            if len(result.rows) == job.max_rows or size > job.max_bytes:
                result.complete = False
                return result
            result.rows.append(row)
    return result


def _unique(names: list[str]) -> list[str]:
    """Make repeated column names unique: name, name_1."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        number = seen.get(name, 0)
        seen[name] = number + 1
        unique.append(f"{name}_{number}" if number else name)
    return unique


def main() -> None:
    start_work(_NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlJob)
    # The limit of DuckDB does not cover everything; the kernel's does.
    address_space = job.limits.memory * _ADDRESS_SPACE_FACTOR + _MEMORY_BESIDE_DUCKDB
    resource.setrlimit(resource.RLIMIT_DATA, (address_space, address_space))
    cpu = round(job.limits.timeout_s * (os.cpu_count() or 1)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    sys.stdout.buffer.write(msgspec.json.encode(run_query(job), enc_hook=str))


if __name__ == "__main__":
    main()
