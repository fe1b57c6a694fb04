"""Rows on their way to the merge: written by the decoders as small Parquet files, read by DuckDB."""

from collections.abc import Sequence
from pathlib import Path

import arro3.io
from arro3.core import Array, DataType
from arro3.core import Table as ArrowTable

from rayhistory.events.rows import Rows
from rayhistory.events.tables import BY_NAME, Rule, Table, Type

_ARROW = {
    Type.TEXT: DataType.utf8(),
    Type.JSON: DataType.utf8(),
    Type.INT: DataType.int64(),
    Type.BOOL: DataType.bool(),
}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def arrow_table(table: Table, rows: Sequence[tuple[object, ...]]) -> ArrowTable:
    try:
        return _convert(table, rows)
    except (OverflowError, TypeError, ValueError):
        return _convert(table, [fitting for row in rows if (fitting := _fit(table, row)) is not None])


def _convert(table: Table, rows: Sequence[tuple[object, ...]]) -> ArrowTable:
    columns = zip(*rows, strict=True) if rows else ([] for _ in table.columns)
    arrays = [Array(list(values), _ARROW[column.type]) for column, values in zip(table.columns, columns, strict=True)]
    return ArrowTable.from_arrays(arrays, names=table.names)


def _fit(table: Table, row: tuple[object, ...]) -> tuple[object, ...] | None:
    """The row without values that its columns cannot hold; None when one of them identifies it."""
    fitted = []
    for column, value in zip(table.columns, row, strict=True):
        good = _fitting(column.type, value)
        if good is None and value is not None and column.rule is Rule.KEY:
            return None
        fitted.append(good)
    return tuple(fitted)


def _fitting(kind: Type, value: object) -> object:
    if kind is Type.BOOL:
        return value if isinstance(value, bool) else None
    if kind is Type.INT:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and _SMALLEST <= value <= _LARGEST else None  # type: ignore[operator]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


class PartialWriter:
    """Collects rows and writes them out before they grow large."""

    def __init__(self, directory: Path, name: str, limit: int = 50_000) -> None:
        self._directory = directory
        self._name = name
        self._limit = limit
        self._files = 0
        self._rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in BY_NAME}
        self.counts: dict[str, int] = dict.fromkeys(BY_NAME, 0)

    def take(self, rows: Rows) -> None:
        """Moves the rows here; the given ones are empty afterwards."""
        for table, more in rows.tables.items():
            kept = self._rows[table]
            kept.extend(more)
            more.clear()
            if len(kept) >= self._limit:
                self._write(table)

    def add(self, table: str, row: tuple[object, ...]) -> None:
        self._rows[table].append(row)

    def close(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                self._write(table)

    def _write(self, table: str) -> None:
        rows = self._rows[table]
        path = self._directory / f"{table}-{self._name}-{self._files}.parquet"
        arro3.io.write_parquet(
            arrow_table(BY_NAME[table], rows), str(path), compression="lz4_raw", dictionary_enabled=False
        )
        self.counts[table] += len(rows)
        self._files += 1
        rows.clear()
