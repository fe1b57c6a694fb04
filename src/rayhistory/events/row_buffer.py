"""A buffer of rows between events and tables, stored by column as Parquet needs them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import msgspec
from msgspec import Raw

from rayhistory.events.table_columns import TABLES, Rule, Table, Type
from rayhistory.gaps import GapCode

Anomaly = tuple[GapCode, str]
"""A problem of an event: the code of the gap, and its detail."""

MALFORMED_ERRORS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""Errors that JSON of an unexpected shape can raise. They are counted as gaps."""

_PYTHON_TYPES: dict[Type, type] = {Type.TEXT: str, Type.JSON: str, Type.INT: int, Type.BOOL: bool}
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
_EMPTY_JSON = {"", "{}", "[]", "null", '""'}
_MAX_EMPTY_JSON_LENGTH = max(map(len, _EMPTY_JSON))


class ColumnMismatch(Exception):
    """A row has other columns than its table. This is a bug in our code, not in an event.

    It is not one of MALFORMED_ERRORS, so that it is never counted as a gap.
    """


class _Schema(msgspec.Struct, frozen=True):
    types: dict[str, type]
    names: frozenset[str]
    keys: frozenset[str]
    required: tuple[str, ...]
    """Keys that must have a value: an id, with an attempt or a time. Other keys may be NULL."""


def _schema(table: Table) -> _Schema:
    keys = frozenset(table.keys)
    return _Schema(
        types={column.name: _PYTHON_TYPES[column.type] for column in table.columns},
        names=frozenset(table.names),
        keys=keys,
        required=tuple(column.name for column in table.columns[:2] if column.rule is Rule.KEY),
    )


_SCHEMAS = {table.name: _schema(table) for table in TABLES}


class RowBuffer:
    """The rows of each table, as one list per column in the order of their declaration."""

    def __init__(self) -> None:
        self.columns: dict[str, dict[str, list[object]]] = {
            table.name: {name: [] for name in table.names} for table in TABLES
        }
        self._anomalies: list[Anomaly] = []

    def add(self, table: str, /, **values: object) -> None:
        """Add a row. All keys must be given. Other missing columns are NULL, which means "unknown".

        A value that does not fit its column becomes NULL, and a row whose key does not fit is left out. Both are
        counted (see `take_anomalies`). Raises ColumnMismatch, before anything is added, if the columns are not those of
        the table.
        """
        schema = _SCHEMAS.get(table)
        if schema is None or not schema.keys <= values.keys() <= schema.names:
            raise ColumnMismatch(_mismatch(table, values))
        invalid = [
            name
            for name, value in values.items()
            if value is not None
            and (
                type(value) is not (expected := schema.types[name])
                or (expected is int and not _MIN_INT <= value <= _MAX_INT)  # type: ignore[operator]
            )
        ]
        has_key = None not in map(values.get, schema.required) and values[schema.required[0]] != ""
        if not has_key or (invalid and not schema.keys.isdisjoint(invalid)):
            self._anomalies.append((GapCode.ROW_WITHOUT_KEY, table))
            return
        for name in invalid:
            self._anomalies.append((GapCode.VALUE_INVALID, f"{table}.{name}"))
            values[name] = None
        for name, column in self.columns[table].items():
            column.append(values.get(name))

    def extend(self, table: str, columns: Mapping[str, Sequence[object]]) -> None:
        """Add many rows whose keys were checked. Every column must be given. Raises ColumnMismatch like `add`."""
        schema = _SCHEMAS.get(table)
        if schema is None or columns.keys() != schema.names:
            raise ColumnMismatch(_mismatch(table, columns))
        lengths = set(map(len, columns.values()))
        if len(lengths) > 1:
            raise ColumnMismatch(f"table {table}: columns have different lengths: {sorted(lengths)}")
        for name, column in self.columns[table].items():
            column.extend(columns[name])

    def take_anomalies(self) -> list[Anomaly]:
        """Return the anomalies since the last call."""
        taken, self._anomalies = self._anomalies, []
        return taken

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return list(zip(*self.columns[table].values(), strict=True))


def _mismatch(table: str, given: Iterable[str]) -> str:
    schema = _SCHEMAS.get(table)
    if schema is None:
        return f"no such table: {table}"
    unknown, missing = sorted(set(given) - schema.names), sorted(schema.keys - set(given))
    return f"{table}: unknown columns {unknown}, missing keys {missing}, given {sorted(given)}"


def invalid_transition(entity: str, state: str, timestamp: str, at: int | None) -> Anomaly:
    """Describe a state transition without a known state (reported once per state) or without a readable time."""
    if at is None:
        return GapCode.TIMESTAMP_UNREADABLE, f"{entity} {state} {timestamp}"
    return GapCode.STATE_UNKNOWN, f"{entity} {state}"


def to_json_text(raw: Raw) -> str | None:
    """Return a JSON value as text; None if it is absent or empty."""
    return to_json_texts((raw,))[0]


def to_json_texts(raws: Sequence[Raw]) -> list[str | None]:
    """Return `to_json_text` of each value."""
    if len(raws) > 1 and raws[0] == raws[-1] and raws.count(raws[0]) == len(raws):  # for example: no labels
        return to_json_texts(raws[:1]) * len(raws)
    return [
        None if len(text) <= _MAX_EMPTY_JSON_LENGTH and text in _EMPTY_JSON else text
        for text in map(str, raws, repeat("utf-8"))
    ]
