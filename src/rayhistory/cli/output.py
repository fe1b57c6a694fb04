"""Rows for people, aligned; and for programs, as JSON, CSV or Parquet."""

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

from rayhistory.cli.schema import moments
from rayhistory.errors import UsageError

_WIDEST = 60
_MOST_ROWS = 1_000
_FIRST_MOMENT, _LAST_MOMENT = 10**12, 10**14
_ROW_GROUP = 20_480
_ENCODER = msgspec.json.Encoder(enc_hook=str)

Rows = Iterable[Iterable[Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="as JSON, for programs")
    forms.add_argument("--csv", action="store_true", help="as CSV, for spreadsheets")
    forms.add_argument("--parquet", metavar="FILE", help="into a Parquet file")


@contextmanager
def writer(
    arguments: argparse.Namespace, names: Sequence[str], types: Mapping[str, str]
) -> Iterator[Callable[[Rows], None]]:
    """To be called with portions of rows, in the order of the names. Columns without a type are text."""
    if arguments.parquet:
        with whole_file(arguments.parquet) as file, _waiting(file, names, types) as add:
            yield add
        return
    form: _Form = _Json(names) if arguments.json else _Csv(names) if arguments.csv else _Aligned(names)
    yield form.add
    form.close()


class _Form(Protocol):
    def add(self, rows: Rows) -> None: ...

    def close(self) -> None: ...


def distinct(names: Iterable[str]) -> list[str]:
    """What is called like another column, in any case, gets a number: as DuckDB does it."""
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
        self._names = distinct(names)
        self._begin = b"["

    def add(self, rows: Rows) -> None:
        for row in rows:
            text = _ENCODER.encode(dict(zip(self._names, row, strict=True)))
            sys.stdout.buffer.write(self._begin + b"\n" + text)
            self._begin = b","

    def close(self) -> None:
        sys.stdout.buffer.write(b"[]\n" if self._begin == b"[" else b"\n]\n")


class _Csv:
    def __init__(self, names: Sequence[str]) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow(distinct(names))

    def add(self, rows: Rows) -> None:
        for row in rows:
            self._writer.writerow([_text(value) if isinstance(value, dict | list) else value for value in row])

    def close(self) -> None:
        sys.stdout.flush()


class _Aligned:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._rows: list[list[str]] = []
        self._more = 0

    def add(self, rows: Rows) -> None:
        for row in rows:
            if len(self._rows) < _MOST_ROWS:
                self._rows.append([_cell(name, value) for name, value in zip(self._names, row, strict=True)])
            else:
                self._more += 1

    def close(self) -> None:
        print(table([[name.upper() for name in distinct(self._names)], *self._rows]))
        if self._more:
            sys.stderr.write(f"{self._more:,} more rows are not shown; --json, --csv and --parquet give all.\n")


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _cell(name: str, value: Any) -> str:
    """One line of bounded width. What a cluster was told to call things can steer a terminal, so nothing of that."""
    if value is None:
        return "-"
    if name in moments() and isinstance(value, int) and _FIRST_MOMENT < value < _LAST_MOMENT:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    text = "".join(mark if mark.isprintable() else " " for mark in _text(value)[: _WIDEST * 4]).strip()
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _text(value: Any) -> str:
    return _ENCODER.encode(value).decode() if isinstance(value, dict | list) else str(value)


@contextmanager
def whole_file(name: str) -> Iterator[Path]:
    """A place beside the file: what was written there becomes the file in the end, whole or not at all."""
    path = Path(name).absolute()
    half = path.parent / f".{path.name}.half"
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} cannot be written: it is no file")
        try:
            half.touch()
            yield half
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror or error}") from None


@contextmanager
def _waiting(file: Path, names: Sequence[str], types: Mapping[str, str]) -> Iterator[Callable[[Rows], None]]:
    """Rows that become a Parquet file wait on its disk until all are there: they may be more than fit into memory."""
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
            raise UsageError(f"no Parquet file can be made of this: {line_of(error)}") from None


def write_parquet(file: Path, rows: duckdb.DuckDBPyRelation) -> None:
    try:
        _exact(rows).write_parquet(str(file), compression="zstd", row_group_size=_ROW_GROUP, use_tmp_file=False)
    except duckdb.IOException as error:
        if str(file) not in str(error):
            raise
        raise UsageError(f"the Parquet file cannot be written: {line_of(error)}") from None


def _exact(rows: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Parquet has no integers of more than 64 bits, and DuckDB would round them: decimals are exact."""
    columns = []
    for place, (name, kind) in enumerate(zip(distinct(rows.columns), rows.types, strict=True), 1):
        exact = "::DECIMAL(38, 0)" if kind in ("HUGEINT", "UHUGEINT") else ""
        quoted = name.replace('"', '""')
        columns.append(f'#{place}{exact} AS "{quoted}"')
    return rows.project(", ".join(columns))


def line_of(error: duckdb.Error) -> str:
    return str(error).split("\n\n")[0].split("\nLINE")[0].replace("\n", " ").strip()
