"""Rows on their way to the merge: written by the decoders as small Parquet files, read by DuckDB."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import arro3.io
from arro3.core import Array, DataType, RecordBatch

from rayhistory.events.columns import Rows
from rayhistory.events.tables import BY_NAME, BY_TASK, Table, Type
from rayhistory.index.answers import AT_ONCE, SNAPSHOTS
from rayhistory.index.parts import Parts

_ARROW = {
    Type.TEXT: DataType.utf8(),
    Type.JSON: DataType.utf8(),
    Type.INT: DataType.int64(),
    Type.BOOL: DataType.bool(),
}
_nothing = {kind: Array([], arrow) for kind, arrow in _ARROW.items()}
_MOST_ROWS = 50_000
USUAL_BYTES = 1000
"""An event has about as many, and its row fewer, unless there are long texts in it."""
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def arrow_batch(table: Table, columns: Sequence[Sequence[object]]) -> RecordBatch:
    """The rows, without values that their columns cannot hold; what identifies a row was looked at before."""
    try:
        return _convert(table, columns)
    except (OverflowError, TypeError, ValueError):
        fitting = [
            [_fitting(column.type, value) for value in values]
            for column, values in zip(table.columns, columns, strict=True)
        ]
        return _convert(table, fitting)


def _convert(table: Table, columns: Sequence[Sequence[object]]) -> RecordBatch:
    arrays = [_array(values, column.type) for column, values in zip(table.columns, columns, strict=True)]
    return RecordBatch.from_arrays(arrays, names=table.names)


def _array(values: Sequence[object], kind: Type) -> Array:
    if any(values) or values.count(None) < len(values):
        return Array(values, _ARROW[kind])
    if len(values) > len(_nothing[kind]):  # most columns of most events are empty: what stands for that is made once
        _nothing[kind] = Array(values, _ARROW[kind])
    return _nothing[kind].slice(0, len(values))


def _fitting(kind: Type, value: object) -> object:
    if kind is Type.BOOL:
        return value if isinstance(value, bool) else None
    if kind is Type.INT:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and _SMALLEST <= value <= _LARGEST else None  # type: ignore[operator]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _length(texts: Sequence[object]) -> int:
    return sum(len(text) for text in texts if isinstance(text, str))


class PartialWriter:
    """Writes rows out before there are too many: those of tasks apart for each part of the fold."""

    def __init__(self, directory: Path, name: str, parts: Parts, most_bytes: int = 1 << 26) -> None:
        self.rows = Rows()
        """Where new rows are put."""
        self.long_bytes = 0
        """By how much the rows of tasks that were written are longer than usual."""
        self._directory = directory
        self._name = name
        self._parts = parts
        self._most_bytes = most_bytes
        self._taken = 0
        self._files = 0

    def take(self, size: int) -> None:
        """To be called now and then, with the number of bytes that rows were made from since."""
        self._taken += size
        if self._taken >= self._most_bytes:
            self.close()
        for table, columns in self.rows.columns.items():
            if len(columns[0]) >= _MOST_ROWS or (table == SNAPSHOTS and _length(columns[-1]) >= AT_ONCE):
                self._write(table, columns)

    def close(self) -> None:
        """Writes what there is."""
        self._taken = 0
        for table, columns in self.rows.columns.items():
            if columns[0]:
                self._write(table, columns)

    def _write(self, table: str, columns: list[list[object]]) -> None:
        batch = arrow_batch(BY_NAME[table], columns)
        if table in BY_TASK:
            self.long_bytes += max(0, batch.nbytes - batch.num_rows * USUAL_BYTES)
        if table in BY_TASK and self._parts.number > 1:
            for part, places in self._parts.split(cast("list[str]", columns[0])):
                self._write_part(table, part, batch.take(Array(places, DataType.uint32())))
        else:
            self._write_part(table, 0, batch)
        for column in columns:
            column.clear()

    def _write_part(self, table: str, part: int, batch: RecordBatch) -> None:
        path = self._directory / f"{table}-{part}-{self._name}-{self._files}.parquet"
        arro3.io.write_parquet(batch, str(path), compression="lz4_raw", dictionary_enabled=False)
        self._files += 1
