"""The dashboard's answers on their way through the fold: few rows, and so large that they are never all in memory.

They are read from and written to files of a few megabytes, because DuckDB unpacks some thousand rows of a file at once.
What stays in memory is the list of them. The last answer to each request is kept once more by itself: it is what the
pages of a session show, however long it was.
"""

from itertools import pairwise
from pathlib import Path

from rayhistory.index.merge import parquet
from rayhistory.index.parts import MOST_PARTS
from rayhistory.index.writing import Database, write

AT_ONCE = 8 << 20
"""Bytes of answers in one file."""

SNAPSHOTS = "snapshots"
LAST_ANSWERS = "last_answers"
_WITH_PLACES = ", filename = true, file_row_number = true"
_NONE = (
    "(SELECT ''::VARCHAR AS uri, 0::BIGINT AS ns, ''::VARCHAR AS body, ''::VARCHAR AS filename, "
    "0::BIGINT AS file_row_number WHERE false)"
)
_AFTER_ALL = 2**62


def list_answers(database: Database, files: list[Path], until_ns: int | None = None) -> None:
    """Makes the table `answers`: each that there is in these files, once, and where it is."""
    rows = parquet(files, _WITH_PLACES) if files else _NONE
    until = f"WHERE ns <= {until_ns}" if until_ns is not None else ""
    # Two answers of one moment are the same, unless somebody made them up: then the same one is chosen every time.
    database.execute(f"""
        CREATE TABLE answers AS
        SELECT uri, ns, best.size AS size, best.file AS file, best.line AS line,
          ns = max(ns) OVER (PARTITION BY uri) AS is_last
        FROM (
          SELECT uri, ns, max(struct_pack(beginning := left(body, 64), digest := hash(body), size := strlen(body),
            file := filename, line := file_row_number)) AS best
          FROM {rows} {until} GROUP BY uri, ns)""")


def write_answers(database: Database, scratch: Path, parts: dict[str, int] | None = None) -> dict[str, list[Path]]:
    """All of them by time, and the last ones; `parts` says how many files of each table there are to be."""
    return {
        name: _write(database, scratch, name, condition, parts[name] if parts else None)
        for name, condition in ((SNAPSHOTS, "true"), (LAST_ANSWERS, "is_last"))
    }


def _write(database: Database, scratch: Path, name: str, condition: str, parts: int | None) -> list[Path]:
    database.execute(
        "CREATE OR REPLACE TABLE chosen AS "
        f"SELECT *, sum(size) OVER (ORDER BY ns, uri) // {AT_ONCE} AS place FROM answers WHERE {condition}"
    )
    places = [place for (place,) in database.execute("SELECT DISTINCT place FROM chosen ORDER BY 1").fetchall()]
    step = -(-len(places) // (parts or MOST_PARTS)) or 1
    bounds = list(pairwise([*places[::step], _AFTER_ALL]))
    bounds += [(_AFTER_ALL, _AFTER_ALL)] * ((parts or 1) - len(bounds))
    return [
        write(database, scratch, name, _between(database, first, following), part)
        for part, (first, following) in enumerate(bounds)
    ]


def _between(database: Database, first: int, following: int) -> str:
    wanted = f"(SELECT file, line FROM chosen WHERE place >= {first} AND place < {following})"
    files = [Path(file) for (file,) in database.execute(f"SELECT DISTINCT file FROM {wanted}").fetchall()]
    rows = parquet(files, _WITH_PLACES) if files else _NONE
    same = "r.filename = w.file AND r.file_row_number = w.line"
    return f"(SELECT uri, ns, body FROM {rows} r SEMI JOIN {wanted} w ON {same} ORDER BY ns, uri)"
