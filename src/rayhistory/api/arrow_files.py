"""Parquet files as Arrow tables."""

import io
import zipfile
from collections.abc import Iterator
from typing import IO

import arro3.io
import numpy as np
from arro3.core import Array, RecordBatch, Schema, Table
from numpy.typing import NDArray

_BATCH_ROWS = 1 << 16
"""Rows per batch. With the default of 1,024, reading takes twice as long."""
_SUPERSEDED = "superseded.parquet"
"""The file of an archive that lists superseded rows of the other files."""


def read_parquet(file: str | IO[bytes]) -> Table:
    return arro3.io.read_parquet(file, batch_size=_BATCH_ROWS).read_all()


def read_archive(file: IO[bytes]) -> Table | None:
    """Return the valid rows of all Parquet files of a zip archive; None if a file is damaged.

    The archive's comment lists hidden columns.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            hidden, superseded = archive.comment.decode().split(), _superseded_rows(archive)
            schemas, batches = list[Schema](), list[RecordBatch]()
            for name in archive.namelist():
                if name != _SUPERSEDED:  # one file after the other: what is dropped is freed before the next is read
                    table = _read_member(archive, name).drop_columns(hidden)
                    schemas.append(table.schema)
                    batches += _valid_batches(table, superseded.get(name, _NO_ROWS))
        return Table.from_batches(batches, schema=schemas[0])
    except Exception:  # noqa: BLE001 -- arro3 raises nothing more specific
        return None


def _read_member(archive: zipfile.ZipFile, name: str) -> Table:
    return read_parquet(io.BytesIO(archive.read(name)))


_NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)


def _superseded_rows(archive: zipfile.ZipFile) -> dict[str, NDArray[np.int64]]:
    """Return the indices of superseded rows in each file, in ascending order."""
    if _SUPERSEDED not in archive.namelist():
        return {}
    listed = _read_member(archive, _SUPERSEDED)
    files, rows = (np.concatenate([_NO_ROWS, *map(np.asarray, listed[name].chunks)]) for name in ("file", "row"))
    return {f"{number}.parquet": np.sort(rows[files == number]) for number in np.unique(files)}


def _valid_batches(table: Table, superseded: NDArray[np.int64]) -> Iterator[RecordBatch]:
    """Yield the batches without their superseded rows. A batch without superseded rows is not copied."""
    first = 0
    for batch in table.to_batches():
        begin, end = np.searchsorted(superseded, (first, first + batch.num_rows))
        kept = np.delete(np.arange(batch.num_rows), superseded[begin:end] - first) if end > begin else None
        yield batch if kept is None else batch.take(Array.from_numpy(kept))
        first += batch.num_rows
