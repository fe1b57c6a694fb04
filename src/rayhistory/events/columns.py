"""Where rows are collected on their way from events to tables: column by column, as Parquet wants them."""

from collections.abc import Iterable, Sequence
from itertools import count, repeat

from msgspec import Raw

from rayhistory.events.tables import BY_NAME, TABLES, Rule, Type

Problem = tuple[str, str]
"""What was wrong with an event: the kind, and the detail."""

NO_KEY = "row without its key"
_PYTHON: dict[Type, type] = {Type.TEXT: str, Type.JSON: str, Type.INT: int, Type.BOOL: bool}
_KINDS = {table.name: [_PYTHON[column.type] for column in table.columns] for table in TABLES}
_KEYS = {
    table.name: {place for place, column in enumerate(table.columns) if column.rule is Rule.KEY} for table in TABLES
}
_LEAST, _MOST = -(2**63), 2**63 - 1
_NEEDED = {name: len(keys & {0, 1}) for name, keys in _KEYS.items()}
"""What a row tells of comes first; of which attempt or moment, second, where there is that: no row is without."""
_EMPTY = {"", "{}", "[]", "null", '""'}
_LONGEST_EMPTY = max(map(len, _EMPTY))


class Rows:
    """The columns of each table, in the order of their declaration."""

    def __init__(self) -> None:
        self.columns: dict[str, list[list[object]]] = {table.name: [[] for _ in table.columns] for table in TABLES}
        self._odd: list[Problem] = []

    def add(self, table: str, row: Sequence[object]) -> None:
        """A value that its column cannot hold is left out, and so is a row without what identifies it; see `odd`."""
        misfits = [
            place
            for place, kind, value in zip(count(), _KINDS[table], row, strict=False)
            if value is not None and (type(value) is not kind or (kind is int and not _LEAST <= value <= _MOST))  # type: ignore[operator]
        ]
        if None in row[: _NEEDED[table]] or row[0] == "" or (misfits and not _KEYS[table].isdisjoint(misfits)):
            self._odd.append((NO_KEY, table))
            return
        if misfits:
            names = BY_NAME[table].names
            self._odd += [("value that does not fit", f"{table}.{names[place]}") for place in misfits]
            row = [None if place in misfits else value for place, value in enumerate(row)]
        for column, value in zip(self.columns[table], row, strict=True):
            column.append(value)

    def odd(self) -> list[Problem]:
        """What was left out since this was last asked."""
        told, self._odd = self._odd, []
        return told

    def extend(self, table: str, columns: Iterable[Iterable[object]]) -> None:
        for column, values in zip(self.columns[table], columns, strict=True):
            column.extend(values)

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return list(zip(*self.columns[table], strict=True))


def odd_change(what: str, state: str, timestamp: str, at: int | None) -> Problem:
    """A state that nobody knows, or a time that cannot be read; the state is told once, whenever it was reached."""
    return f"unknown {what} state or time", f"{state} {timestamp}" if at is None else state


def json_text(raw: Raw) -> str | None:
    """A JSON value as text; None when it is absent or empty."""
    return json_texts((raw,))[0]


def json_texts(raws: Iterable[Raw]) -> list[str | None]:
    """The same for many."""
    return [
        None if len(text) <= _LONGEST_EMPTY and text in _EMPTY else text for text in map(str, raws, repeat("utf-8"))
    ]
