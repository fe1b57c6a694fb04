"""Rows for people, aligned; and for programs, as JSON, CSV or Parquet."""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rayhistory.errors import UsageError

_WIDEST = 60
_MOST_ROWS = 1_000
_FIRST_MOMENT = 10**12
_ENCODER = msgspec.json.Encoder(enc_hook=str)

Rows = Iterable[Iterable[Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="as JSON, for programs")
    forms.add_argument("--csv", action="store_true", help="as CSV, for spreadsheets")
    forms.add_argument("--parquet", metavar="FILE", help="into a Parquet file")


@contextmanager
def writer(arguments: argparse.Namespace, names: Sequence[str]) -> Iterator[Callable[[Rows], None]]:
    """To be called with portions of rows, in the order of the names."""
    if arguments.json:
        form: _Form = _Json(names)
    elif arguments.csv:
        form = _Csv(names)
    elif arguments.parquet:
        form = _Parquet(names, arguments.parquet)
    else:
        form = _Aligned(names)
    yield form.add
    form.close()


class _Form(Protocol):
    def add(self, rows: Rows) -> None: ...

    def close(self) -> None: ...


class _Json:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
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
        self._writer.writerow(names)

    def add(self, rows: Rows) -> None:
        for row in rows:
            self._writer.writerow([_text(value) if isinstance(value, dict | list) else value for value in row])

    def close(self) -> None:
        sys.stdout.flush()


class _Parquet:
    def __init__(self, names: Sequence[str], file: str) -> None:
        self._names = names
        self._file = file
        self._columns: list[list[Any]] = [[] for _ in names]

    def add(self, rows: Rows) -> None:
        for row in rows:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)

    def close(self) -> None:
        write_parquet(self._file, arrow_table(self._names, self._columns))


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
        print(table([[name.upper() for name in self._names], *self._rows]))
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
    if isinstance(value, int) and name.endswith(("_ms", "_time")) and value > _FIRST_MOMENT:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    text = "".join(mark if mark.isprintable() else " " for mark in _text(value)[: _WIDEST * 4]).strip()
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _text(value: Any) -> str:
    return _ENCODER.encode(value).decode() if isinstance(value, dict | list) else str(value)


def arrow_table(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Any:
    """Typed by what is in the columns; what has several types, or parts, becomes text."""
    from arro3.core import Array, DataType, Table  # noqa: PLC0415

    types = {bool: DataType.bool(), int: DataType.int64(), float: DataType.float64()}
    arrays = []
    for column in columns:
        kinds = {type(value) for value in column if value is not None}
        if len(kinds) == 1 and (kind := kinds.pop()) in types:
            arrays.append(Array(column, types[kind]))
        else:
            arrays.append(Array([None if value is None else _text(value) for value in column], DataType.utf8()))
    return Table.from_arrays(arrays, names=list(names))


def write_parquet(name: str, table: Any) -> None:
    """Whole or not at all."""
    import arro3.io  # noqa: PLC0415

    path = Path(name)
    half = path.with_name(f".{path.name}.half")
    try:
        arro3.io.write_parquet(table, str(half))
        half.replace(path)
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror or error}") from None
    finally:
        half.unlink(missing_ok=True)
