"""Results that iterate as dictionaries and convert to Arrow, pandas and polars."""

import html
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any

from arro3.core import Array, DataType, Table

from rayhistory.errors import RayHistoryError

Row = dict[str, Any]

_SHOWN_ROWS = 20
_MAX_CELL_CHARS = 200


class Rows(ABC):
    """Rows of a result. They are read when needed, and again for each iteration."""

    @abstractmethod
    def __iter__(self) -> Iterator[Row]: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _table(self) -> Table:
        """Return all rows as an Arrow table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Pass the rows to any library that reads Arrow: `pyarrow.table(rows)`, `polars.DataFrame(rows)`, DuckDB."""
        return self._table().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`, or without pyarrow an `arro3.core.Table`, which most libraries accept."""
        table = self._table()
        return _required("pyarrow").table(table) if find_spec("pyarrow") else table

    def to_pandas(self) -> Any:
        pandas, table = _required("pandas"), self._table()
        if find_spec("pyarrow"):
            return _required("pyarrow").table(table).to_pandas()
        return pandas.DataFrame({name: table[name].to_pylist() for name in table.column_names}, copy=False)

    def to_polars(self) -> Any:
        return _required("polars").DataFrame(self._table())

    def to_list(self) -> list[Row]:
        return list(self)

    def _repr_html_(self) -> str:
        rows = list(islice(self, _SHOWN_ROWS))
        more = len(self) - len(rows)
        return rows_html(rows) + (f"<p>{more:,} more rows</p>" if more > 0 else "")


class RowList(Rows, Sequence[Row]):
    """Rows that are in memory."""

    def __init__(self, rows: list[Row], columns: Sequence[str] = (), *, complete: bool = True) -> None:
        self._rows = rows
        self._columns = columns
        self.complete = complete
        """True if the result has all rows, False if a limit cut it."""

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"

    def _table(self) -> Table:
        return table_from_rows(self._rows, self._columns)


def table_from_rows(rows: list[Row], columns: Sequence[str] = ()) -> Table:
    """Build an Arrow table. Each column gets the type of its values. Values of mixed types become JSON texts."""
    names = list(columns) or list(dict.fromkeys(name for row in rows for name in row))
    return Table.from_pydict({name: _column([row.get(name) for row in rows]) for name in names})


_TYPES = {bool: DataType.bool(), int: DataType.int64(), float: DataType.float64(), str: DataType.string()}


def _column(values: list[Any]) -> Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return Array([None if value is None else float(value) for value in values], DataType.float64())
    if len(kinds) == 1 and (kind := kinds.pop()) in _TYPES:
        return Array(values, _TYPES[kind])
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return Array(texts, DataType.string())


def rows_html(rows: list[Row]) -> str:
    """Return an HTML table. Text from a cluster is escaped."""
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return html.escape(text if len(text) <= _MAX_CELL_CHARS else text[:_MAX_CELL_CHARS] + "…")


def _required(package: str) -> Any:
    if not find_spec(package):
        raise RayHistoryError(f"{package} is not installed: pip install {package}")
    return __import__(package)
