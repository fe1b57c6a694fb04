"""Partial files: rows before the merge, written by decoders as small Parquet files and read by DuckDB."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import arro3.io
from arro3.core import Array, DataType, RecordBatch

from rayhistory.events.row_buffer import RowBuffer
from rayhistory.events.table_columns import TABLES_BY_NAME, TASK_TABLES, Table, Type
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.response_files import RESPONSE_FILE_BYTES, RESPONSES_TABLE

_ARROW_TYPES = {
    Type.TEXT: DataType.utf8(),
    Type.JSON: DataType.utf8(),
    Type.INT: DataType.int64(),
    Type.BOOL: DataType.bool(),
}
_null_columns = {column_type: Array([], arrow) for column_type, arrow in _ARROW_TYPES.items()}
"""All-NULL columns, made once and sliced, because most columns of most events are empty."""
_MAX_ROWS = 50_000
_CHECKED_BYTES = 1 << 20
"""The row counts are checked after this number of bytes, and not after each of many small objects."""
TYPICAL_ROW_BYTES = 1000
"""Typical size of an event. Its row is smaller, unless it contains long texts."""
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


def arrow_batch(table: Table, columns: Sequence[Sequence[object]]) -> RecordBatch:
    """Convert rows to Arrow. Values that do not fit their column become NULL.

    Columns that identify a row always fit: `RowBuffer.add` has checked them.
    """
    try:
        return _convert(table, columns)
    except (OverflowError, TypeError, ValueError):
        valid = [
            [_valid_or_none(column.type, value) for value in values]
            for column, values in zip(table.columns, columns, strict=True)
        ]
        return _convert(table, valid)


def _convert(table: Table, columns: Sequence[Sequence[object]]) -> RecordBatch:
    arrays = [_array(values, column.type) for column, values in zip(table.columns, columns, strict=True)]
    return RecordBatch.from_arrays(arrays, names=table.names)


def _array(values: Sequence[object], column_type: Type) -> Array:
    if any(values) or values.count(None) < len(values):
        return Array(values, _ARROW_TYPES[column_type])
    if len(values) > len(_null_columns[column_type]):
        _null_columns[column_type] = Array(values, _ARROW_TYPES[column_type])
    return _null_columns[column_type].slice(0, len(values))


def _valid_or_none(column_type: Type, value: object) -> object:
    if column_type is Type.BOOL:
        return value if isinstance(value, bool) else None
    if column_type is Type.INT:
        is_int = isinstance(value, int) and not isinstance(value, bool)
        return value if is_int and _MIN_INT <= value <= _MAX_INT else None  # type: ignore[operator]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _total_length(texts: Sequence[object]) -> int:
    return sum(len(text) for text in texts if isinstance(text, str))


class PartialWriter:
    """Writes rows to files before they use too much memory. Task rows go to the files of their partition."""

    def __init__(self, directory: Path, name: str, partitions: Partitions, max_bytes: int = 1 << 26) -> None:
        self.rows = RowBuffer()
        """The buffer for rows that are not written yet."""
        self.long_bytes = 0
        """Number of bytes by which written task rows exceed TYPICAL_ROW_BYTES each."""
        self._directory = directory
        self._name = name
        self._partitions = partitions
        self._max_bytes = max_bytes
        self._pending_bytes = 0
        self._unchecked_bytes = 0
        self._files = 0

    def flush_if_large(self, new_bytes: int) -> None:
        """Write the rows to files if there are too many.

        `new_bytes` is the size of the events added since the last call.
        """
        self._pending_bytes += new_bytes
        self._unchecked_bytes += new_bytes
        if self._unchecked_bytes < _CHECKED_BYTES:
            return
        self._unchecked_bytes = 0
        if self._pending_bytes >= self._max_bytes:
            self.close()
        for table, columns in self.rows.columns.items():
            if _row_count(columns) >= _MAX_ROWS or (
                table == RESPONSES_TABLE and _total_length(columns["body"]) >= RESPONSE_FILE_BYTES
            ):
                self._write(table, columns)

    def close(self) -> None:
        """Write all remaining rows."""
        self._pending_bytes = 0
        for table, columns in self.rows.columns.items():
            if _row_count(columns):
                self._write(table, columns)

    def _write(self, table: str, columns: dict[str, list[object]]) -> None:
        batch = arrow_batch(TABLES_BY_NAME[table], list(columns.values()))
        if table in TASK_TABLES:
            self.long_bytes += max(0, batch.nbytes - batch.num_rows * TYPICAL_ROW_BYTES)
        if table in TASK_TABLES and self._partitions.count > 1:
            for partition, positions in self._partitions.split(cast("list[str]", columns["task_id"])):
                self._write_partition(table, partition, batch.take(Array(positions, DataType.uint32())))
        else:
            self._write_partition(table, 0, batch)
        for column in columns.values():
            column.clear()

    def _write_partition(self, table: str, partition: int, batch: RecordBatch) -> None:
        path = self._directory / f"{table}-{partition}-{self._name}-{self._files}.parquet"
        arro3.io.write_parquet(batch, str(path), compression="lz4_raw", dictionary_enabled=False)
        self._files += 1


def _row_count(columns: dict[str, list[object]]) -> int:
    return len(next(iter(columns.values())))
