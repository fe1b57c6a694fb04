"""Dashboard responses in the fold. They are few but large, so they are never all in memory.

They are written to files of a few megabytes, because DuckDB decompresses thousands of rows of a file at once. Only
their list is in memory. The last response of each URI is also stored in a small table, which most pages use.
"""

from itertools import pairwise
from pathlib import Path

from rayhistory.index.fold.merge import parquet
from rayhistory.index.fold.partitions import MAX_PARTITIONS
from rayhistory.index.fold.table_files import Database, write_table

RESPONSE_FILE_BYTES = 8 << 20
"""The size of a file of responses."""

RESPONSES_TABLE = "snapshots"
LAST_RESPONSES_TABLE = "last_answers"
_WITH_ROW_NUMBERS = ", filename = true, file_row_number = true"
_NO_ROWS = (
    "(SELECT ''::VARCHAR AS uri, 0::BIGINT AS ns, ''::VARCHAR AS body, ''::VARCHAR AS filename, "
    "0::BIGINT AS file_row_number WHERE false)"
)
_AFTER_LAST_CHUNK = 2**62


def list_responses(database: Database, files: list[Path], until_ns: int | None = None) -> None:
    """Create the table `responses`: every distinct response in these files, and its position."""
    rows = parquet(files, _WITH_ROW_NUMBERS) if files else _NO_ROWS
    until = f"WHERE ns <= {until_ns}" if until_ns is not None else ""
    # Two responses with the same URI and time are copies. If a store holds forged ones, the choice is deterministic.
    database.execute(f"""
        CREATE TABLE responses AS
        SELECT uri, ns, best.size AS size, best.file AS file, best.line AS line,
          ns = max(ns) OVER (PARTITION BY uri) AS is_last
        FROM (
          SELECT uri, ns, max(struct_pack(beginning := left(body, 64), digest := hash(body), size := strlen(body),
            file := filename, line := file_row_number)) AS best
          FROM {rows} {until} GROUP BY uri, ns)""")


def write_responses(
    database: Database, scratch: Path, file_counts: dict[str, int] | None = None
) -> dict[str, list[Path]]:
    """Write all responses ordered by time, and the last response to each URI.

    `file_counts` prescribes how many files each of the two tables gets.
    """
    return {
        name: _write(database, scratch, name, condition, file_counts[name] if file_counts else None)
        for name, condition in ((RESPONSES_TABLE, "true"), (LAST_RESPONSES_TABLE, "is_last"))
    }


def _write(database: Database, scratch: Path, name: str, condition: str, file_count: int | None) -> list[Path]:
    database.execute(
        "CREATE OR REPLACE TABLE chosen AS SELECT *, "
        f"sum(size) OVER (ORDER BY ns, uri) // {RESPONSE_FILE_BYTES} AS chunk FROM responses WHERE {condition}"
    )
    chunks = [chunk for (chunk,) in database.execute("SELECT DISTINCT chunk FROM chosen ORDER BY 1").fetchall()]
    step = -(-len(chunks) // (file_count or MAX_PARTITIONS)) or 1
    bounds = list(pairwise([*chunks[::step], _AFTER_LAST_CHUNK]))
    bounds += [(_AFTER_LAST_CHUNK, _AFTER_LAST_CHUNK)] * ((file_count or 1) - len(bounds))
    return [
        write_table(database, scratch, name, _select_chunks(database, first, following), number)
        for number, (first, following) in enumerate(bounds)
    ]


def _select_chunks(database: Database, first: int, following: int) -> str:
    wanted = f"(SELECT file, line FROM chosen WHERE chunk >= {first} AND chunk < {following})"
    files = [Path(file) for (file,) in database.execute(f"SELECT DISTINCT file FROM {wanted}").fetchall()]
    rows = parquet(files, _WITH_ROW_NUMBERS) if files else _NO_ROWS
    same = "r.filename = w.file AND r.file_row_number = w.line"
    return f"(SELECT uri, ns, body FROM {rows} r SEMI JOIN {wanted} w ON {same} ORDER BY ns, uri)"
