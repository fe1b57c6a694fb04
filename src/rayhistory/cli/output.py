"""Output of rows: aligned text, JSON, CSV or Parquet."""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

import duckdb
import msgspec

from rayhistory.cli.table_schema import timestamp_columns
from rayhistory.cli.text_table import align, cut_to_width, terminal_width
from rayhistory.errors import UsageError
from rayhistory.index.query.sql_sandbox import duckdb_message
from rayhistory.terminal_text import strip_ansi

_MAX_CELL_CHARS = 4_096
_MAX_TEXT_ROWS = 1_000
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_MIN_TIMESTAMP_MS, _MAX_TIMESTAMP_MS = 10**12, 10**14
"""Range of numbers that are formatted as dates. Other numbers in a timestamp column, such as sums, are not."""
_ROW_GROUP_ROWS = 20_480
_EXCEPTION_COLUMNS = frozenset({"error_message"})
_MAX_EXCEPTION_TAIL = 8_192
_ENCODER = msgspec.json.Encoder(enc_hook=str)

Rows = Iterable[Iterable[Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.add_argument("--csv", action="store_true", help="print CSV")
    formats.add_argument("--parquet", metavar="FILE", help="write a Parquet file")


@contextmanager
def row_writer(
    arguments: argparse.Namespace, names: Sequence[str], types: Mapping[str, str]
) -> Iterator[Callable[[Rows], None]]:
    """Yield a function that writes batches of rows, with cells in the order of `names`. The default format is text."""
    if arguments.parquet:
        with atomic_file(arguments.parquet) as file, _parquet_writer(file, names, types) as add:
            yield add
        return
    writer: _RowWriter = _Json(names) if arguments.json else _Csv(names) if arguments.csv else _Text(names)
    yield writer.add
    writer.close()


class _RowWriter(Protocol):
    def add(self, rows: Rows) -> None: ...

    def close(self) -> None: ...


def unique_names(names: Iterable[str]) -> list[str]:
    """Number repeated column names, ignoring case, as DuckDB does."""
    found: dict[str, str] = {}
    for name in names:
        other, number = name, 0
        while other.lower() in found:
            number += 1
            other = f"{name}_{number}"
        found[other.lower()] = other
    return list(found.values())


class _Json:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = unique_names(names)
        self._separator = b"["

    def add(self, rows: Rows) -> None:
        for row in rows:
            text = _ENCODER.encode(dict(zip(self._names, row, strict=True)))
            sys.stdout.buffer.write(self._separator + b"\n" + text)
            self._separator = b","

    def close(self) -> None:
        sys.stdout.buffer.write(b"[]\n" if self._separator == b"[" else b"\n]\n")


class _Csv:
    def __init__(self, names: Sequence[str]) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow(unique_names(names))

    def add(self, rows: Rows) -> None:
        for row in rows:
            self._writer.writerow([_csv_cell(value) for value in row])

    def close(self) -> None:
        sys.stdout.flush()


class _Text:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._rows: list[list[str]] = []
        self._omitted = 0
        self._dates = [name in timestamp_columns() for name in names]
        """For each column, whether all its values so far are dates."""

    def add(self, rows: Rows) -> None:
        for row in rows:
            if len(self._rows) < _MAX_TEXT_ROWS:
                self._rows.append(self._cells(list(row)))
            else:
                self._omitted += 1

    def _cells(self, row: list[Any]) -> list[str]:
        self._dates = [
            dates and (value is None or _is_timestamp(value)) for dates, value in zip(self._dates, row, strict=True)
        ]
        return [_cell(name, value) for name, value in zip(self._names, row, strict=True)]

    def _headings(self) -> list[str]:
        """Return the headings: column names in capitals. In headings of dates, "_MS" becomes "(UTC)"."""
        names = zip(unique_names(self._names), self._dates, strict=True)
        return [f"{name.replace('_ms', '')} (utc)".upper() if dates else name.upper() for name, dates in names]

    def close(self) -> None:
        headings = self._headings()
        width = terminal_width()
        rows = self._rows if width is None else cut_to_width(headings, self._rows, width)
        print(align([headings, *rows]))
        if self._omitted:
            sys.stderr.write(f"{self._omitted:,} more rows not shown: use --json, --csv or --parquet for all rows\n")


def _csv_cell(value: Any) -> Any:
    """Escape text that a spreadsheet would run as a formula, because jobs choose their names and messages."""
    if isinstance(value, dict | list):
        value = _text(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _cell(name: str, value: Any) -> str:
    """Return a cell's value as one line of bounded length."""
    if value is None:
        return "-"
    if name in timestamp_columns() and _is_timestamp(value):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    text = last_line(str(value)) if name in _EXCEPTION_COLUMNS else _text(value)
    text = printable(strip_ansi(text[: _MAX_CELL_CHARS + 1])).strip()
    return text if len(text) <= _MAX_CELL_CHARS else text[: _MAX_CELL_CHARS - 1] + "…"


def _is_timestamp(value: Any) -> bool:
    return isinstance(value, int) and _MIN_TIMESTAMP_MS < value < _MAX_TIMESTAMP_MS


def last_line(text: str) -> str:
    """Return the last non-empty line. In a traceback, this is the exception."""
    tail = strip_ansi(text[-_MAX_EXCEPTION_TAIL:]).rstrip()
    return tail.rpartition("\n")[2].strip()


def printable(text: str) -> str:
    """Replace control characters by spaces, because names come from a cluster."""
    return "".join(char if char.isprintable() else " " for char in text)


def _text(value: Any) -> str:
    return _ENCODER.encode(value).decode() if isinstance(value, dict | list) else str(value)


@contextmanager
def atomic_file(name: str) -> Iterator[Path]:
    """Yield a temporary path. It replaces the file if the context succeeds."""
    path = Path(name).absolute()
    temporary = path.parent / f".{path.name}.half"
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot write {name}: not a regular file")
        try:
            temporary.touch()
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror or error}") from None


@contextmanager
def _parquet_writer(file: Path, names: Sequence[str], types: Mapping[str, str]) -> Iterator[Callable[[Rows], None]]:
    """Buffer rows on disk beside the Parquet file, because they may not fit into memory."""
    with NamedTemporaryFile(dir=file.parent, prefix=f"{file.name}.") as lines, duckdb.connect() as database:

        def add(rows: Rows) -> None:
            for row in rows:
                lines.write(_ENCODER.encode(dict(zip(names, row, strict=True))) + b"\n")

        yield add
        lines.flush()
        columns = {name: types.get(name, "VARCHAR") for name in names}
        try:
            write_parquet(file, database.read_json(lines.name, columns=columns, format="newline_delimited"))
        except duckdb.Error as error:
            raise UsageError(f"cannot convert the rows to Parquet: {duckdb_message(error)}") from None


def write_parquet(file: Path, rows: duckdb.DuckDBPyRelation) -> None:
    try:
        _with_exact_integers(rows).write_parquet(
            str(file), compression="zstd", row_group_size=_ROW_GROUP_ROWS, use_tmp_file=False
        )
    except duckdb.IOException as error:
        if str(file) not in str(error):
            raise
        raise UsageError(f"cannot write the Parquet file: {duckdb_message(error)}") from None


def _with_exact_integers(rows: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Convert integers of more than 64 bits to decimals. Parquet has none, and DuckDB would round them."""
    columns = []
    for number, (name, kind) in enumerate(zip(unique_names(rows.columns), rows.types, strict=True), 1):
        exact = "::DECIMAL(38, 0)" if kind in ("HUGEINT", "UHUGEINT") else ""
        quoted = name.replace('"', '""')
        columns.append(f'#{number}{exact} AS "{quoted}"')
    return rows.project(", ".join(columns))
