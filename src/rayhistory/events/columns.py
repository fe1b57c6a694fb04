"""Where rows are collected on their way from events to tables: column by column, as Parquet wants them."""

from collections.abc import Iterable, Sequence
from itertools import repeat

from msgspec import Raw

from rayhistory.events.tables import TABLES

Problem = tuple[str, str]
"""What was wrong with an event: the kind, and the detail."""

_EMPTY = {"", "{}", "[]", "null", '""'}
_LONGEST_EMPTY = max(map(len, _EMPTY))


class Rows:
    """The columns of each table, in the order of their declaration."""

    def __init__(self) -> None:
        self.columns: dict[str, list[list[object]]] = {table.name: [[] for _ in table.columns] for table in TABLES}

    def add(self, table: str, row: Sequence[object]) -> None:
        for column, value in zip(self.columns[table], row, strict=True):
            column.append(value)

    def extend(self, table: str, columns: Iterable[Iterable[object]]) -> None:
        for column, values in zip(self.columns[table], columns, strict=True):
            column.extend(values)

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return list(zip(*self.columns[table], strict=True))


def json_text(raw: Raw) -> str | None:
    """A JSON value as text; None when it is absent or empty."""
    return json_texts((raw,))[0]


def json_texts(raws: Iterable[Raw]) -> list[str | None]:
    """The same for many."""
    return [
        None if len(text) <= _LONGEST_EMPTY and text in _EMPTY else text for text in map(str, raws, repeat("utf-8"))
    ]
