"""Parts of the run table: Parquet files with one row per session."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import arro3.io
import duckdb
import msgspec
from arro3.core import Array, DataType, RecordBatch

from rayhistory.errors import IndexDamaged
from rayhistory.index.fold.merge import parquet
from rayhistory.index.query.database import execute
from rayhistory.runs.session_summary import SessionDetails, SessionSummary, StoredSummary

Identity = tuple[str, str, str]
MAX_PART_ROWS = 5_000
MAX_PART_BYTES = 64 << 20
_COMPRESSION = "zstd(3)"
_COLUMNS = ("namespace", "cluster", "session", "generation", "started_ms", "summary", "details")
_NUMBERS = ("generation", "started_ms")


class RunRow(msgspec.Struct, frozen=True):
    """A summary, and the generation of the tables that it was made from. A higher generation replaces a lower one."""

    generation: int
    summary: SessionSummary


class FullRow(msgspec.Struct, frozen=True):
    """A row with its details."""

    generation: int
    stored: StoredSummary

    @property
    def identity(self) -> Identity:
        return self.stored.summary.identity


def write_part(path: Path, rows: Sequence[FullRow]) -> tuple[int, int]:
    """Write a part. Return the offset and size of its details, which are most of the file."""
    values = list(zip(*map(_values, rows), strict=True))
    arrays = [
        Array(list(column), DataType.int64() if name in _NUMBERS else DataType.utf8())
        for name, column in zip(_COLUMNS, values, strict=True)
    ]
    batch = RecordBatch.from_arrays(arrays, names=list(_COLUMNS))
    arro3.io.write_parquet(batch, str(path), compression=_COMPRESSION, max_row_group_size=2 * MAX_PART_ROWS)
    return _details_range(path)


def _details_range(path: Path) -> tuple[int, int]:
    """Return the range of the column chunk with the details."""
    columns = "coalesce(dictionary_page_offset, data_page_offset) AS start, total_compressed_size AS size"
    sql = f"SELECT {columns} FROM parquet_metadata(?) WHERE path_in_schema = 'details'"
    (row,) = execute(sql, [str(path)])
    return int(row["start"]), int(row["size"])


def _values(row: FullRow) -> tuple[object, ...]:
    summary, details = row.stored.summary, row.stored.details
    texts = (msgspec.json.encode(each).decode() for each in (summary, details))
    return *summary.identity, row.generation, summary.started_ms or 0, *texts


def read_summaries(path: Path) -> list[RunRow]:
    """Return the rows of a part without details; raise IndexDamaged if it cannot be read."""
    decoder = msgspec.json.Decoder(SessionSummary)
    columns = "namespace, cluster, session, generation, summary"
    try:
        return [
            RunRow(row["generation"], _identified(decoder.decode(row["summary"]), row))
            for row in execute(f"SELECT {columns} FROM {parquet([path])} LIMIT {MAX_PART_ROWS * 2}", [])
        ]
    except (duckdb.Error, msgspec.MsgspecError, TypeError) as error:
        raise IndexDamaged(f"cannot read a file of the run table: {error}") from None


def read_rows(path: Path, identities: Iterable[Identity] | None = None) -> list[FullRow]:
    """Return complete rows of some or all sessions. Raise IndexDamaged if they cannot be read."""
    chosen = None if identities is None else [list(identity) for identity in identities]
    where = "" if chosen is None else " WHERE list_contains(?::VARCHAR[][], [namespace, cluster, session])"
    sql = f"SELECT {', '.join(_COLUMNS)} FROM {parquet([path])}{where} LIMIT {MAX_PART_ROWS * 2}"
    try:
        return [_full(row) for row in execute(sql, [] if chosen is None else [chosen])]
    except (duckdb.Error, msgspec.MsgspecError, TypeError) as error:
        raise IndexDamaged(f"cannot read a file of the run table: {error}") from None


def _full(row: dict[str, object]) -> FullRow:
    summary = _identified(msgspec.json.decode(str(row["summary"]), type=SessionSummary), row)
    details = msgspec.json.decode(str(row["details"]), type=SessionDetails)
    return FullRow(int(str(row["generation"])), StoredSummary(summary=summary, details=details))


def _identified(summary: SessionSummary, row: dict[str, object]) -> SessionSummary:
    """Return the summary, if its identity matches its row.

    A summary must not pretend to belong to another namespace.
    """
    identity = (row["namespace"], row["cluster"], row["session"])
    if summary.identity == identity:
        return summary
    raise TypeError("summary and row in the run table are of different sessions")
