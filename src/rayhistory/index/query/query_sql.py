"""Turn queries into SQL text and bound values."""

import difflib
from typing import Any

import duckdb
import msgspec

from rayhistory.errors import IndexDamaged, UsageError
from rayhistory.events.table_columns import Type
from rayhistory.index.query.query import KEY_COLUMNS, AllOf, Condition, Filter, Query
from rayhistory.utc import parse_utc_ms

MAX_INT64 = 2**63 - 1

_OPERATORS = {"=", "!=", "<", "<=", ">", ">=", "contains", "prefix", "in"}
_MAX_BOUND_VALUES = 16
_COLUMN_TYPES = {kind.sql for kind in Type}
_TIME_HINT = ": use milliseconds since 1970, or a time such as 2026-11-15T19:20:05Z"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def column_types(database: duckdb.DuckDBPyConnection, source: str) -> dict[str, str]:
    """Return the column types of a table.

    Types become part of the SQL and the file is untrusted. So only types of our own tables are accepted.
    """
    types = {name: kind for name, kind, *_ in database.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
    if unknown := set(types.values()) - _COLUMN_TYPES:
        raise IndexDamaged(f"index table has unexpected column types: {', '.join(sorted(unknown))[:200]}")
    return types


def checked_column(types: dict[str, str], table: str, column: str) -> str:
    """Return the column name if it is safe, else raise. It becomes part of the SQL, and the file is untrusted."""
    if column not in types or not column.isidentifier():
        near = difflib.get_close_matches(column, types, 1)
        hint = f"did you mean {near[0]}? Columns: " if near else "use one of "
        raise UsageError(f"table {table!r} has no column {column!r}: {hint}{', '.join(types)}")
    return column


def order_sql(types: dict[str, str], query: Query) -> str:
    """Return the ORDER BY clause. Only pages need a unique order."""
    total = query.after is not None or (query.sort and query.limit is not None)
    terms = [
        f"{checked_column(types, query.table, name.lstrip('-'))} {'DESC' if name.startswith('-') else 'ASC'} NULLS LAST"
        for name in (query.order if total else query.sort)
    ]
    return f" ORDER BY {', '.join(terms)}" if terms else ""


def where_sql(types: dict[str, str], query: Query) -> tuple[str, list[Any]]:
    """Return the WHERE clause for the filters and the start of the page, with its bound values."""
    terms, values = [], []
    for condition in query.filters:
        term, more = _condition_sql(types, query.table, condition)
        terms.append(term)
        values += more
    if query.after is not None:
        term, more = _after_sql(types, query, query.after)
        terms.append(term)
        values += more
    return (f" WHERE {' AND '.join(terms)}" if terms else ""), values


def _condition_sql(types: dict[str, str], table: str, condition: Condition) -> tuple[str, list[Any]]:
    if isinstance(condition, Filter):
        column = checked_column(types, table, condition.column)
        return _filter_sql(column, types[column], condition)
    parts = [_condition_sql(types, table, each) for each in condition.conditions]
    joined = (" AND " if isinstance(condition, AllOf) else " OR ").join(term for term, _ in parts)
    return f"({joined})", [value for _, values in parts for value in values]


def _after_sql(types: dict[str, str], query: Query, last: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return a condition for the rows after a position. The redundant first term lets DuckDB skip row groups."""
    if len(last) != len(query.order):
        raise UsageError(f"cursor has {len(last)} values, but this sort order needs {len(query.order)}")
    alternatives: list[str] = []
    values: list[Any] = []
    equal_values: list[Any] = []
    equal = ""
    for name, given in zip(query.order, last, strict=True):
        column = checked_column(types, query.table, name.lstrip("-"))
        if given is None:
            equal += f"{column} IS NULL AND "
            continue
        value = _converted(column, types[column], given)
        alternatives.append(f"{equal}({column} {'<' if name.startswith('-') else '>'} ? OR {column} IS NULL)")
        values += [*equal_values, value]
        equal += f"{column} = ? AND "
        equal_values.append(value)
    if not alternatives:
        return "false", []
    term = f"({' OR '.join(alternatives)})"
    if last[0] is None:
        return term, values
    first = query.order[0]
    bound = f"({first.lstrip('-')} {'<=' if first.startswith('-') else '>='} ? OR {first.lstrip('-')} IS NULL)"
    if first in KEY_COLUMNS.get(query.table, ())[:1]:
        bound = f"{first} >= ?"
    return f"{bound} AND {term}", [values[0], *values]


def _filter_sql(column: str, kind: str, condition: Filter) -> tuple[str, list[Any]]:
    operator, value = condition.operator, condition.value
    if operator not in _OPERATORS:
        raise UsageError(f"unknown operator {operator!r}: use one of {', '.join(sorted(_OPERATORS))}")
    if operator == "in":
        wanted = [_converted(column, kind, one) for one in value]
        if 0 < len(wanted) <= _MAX_BOUND_VALUES:
            return f"{column} IN ({', '.join('?' * len(wanted))})", wanted
        # Passed as one JSON text: binding ten thousand Python values takes DuckDB a second.
        return f"{column} IN (SELECT unnest(from_json(?, '[\"{kind}\"]')))", [msgspec.json.encode(wanted).decode()]
    if operator in ("contains", "prefix"):
        function = "contains" if operator == "contains" else "starts_with"
        return f"{function}(lower({column}::VARCHAR), lower(?))", [_checked_text(column, str(value))]
    if value is None:
        if operator not in ("=", "!="):
            raise UsageError(f"{column} {operator} needs a value")
        return f"{column} IS {'NULL' if operator == '=' else 'NOT NULL'}", []
    value = _converted(column, kind, value)
    ignore_case = isinstance(value, str) and operator in ("=", "!=")
    left, right = (f"lower({column})", "lower(?)") if ignore_case else (column, "?")
    return f"{left} {'IS DISTINCT FROM' if operator == '!=' else operator} {right}", [value]


def _converted(column: str, kind: str, value: Any) -> Any:
    """Convert a value to the column's type; raise UsageError if it does not fit."""
    if kind == "VARCHAR":
        return _checked_text(column, str(value))
    if kind == "BOOLEAN":
        found = value if isinstance(value, bool) else _BOOLEANS.get(str(value).lower())
        if found is None:
            raise UsageError(f"{column} is a boolean, not {value!r}: use true or false")
        return found
    try:
        number = _number(column, value)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{column} is a number, not {value!r}{_TIME_HINT if _is_time(column) else ''}") from None
    if abs(number) > MAX_INT64:
        raise UsageError(f"{column} cannot be compared with {value}: it does not fit into 64 bits")
    return number


def _number(column: str, value: Any) -> int:
    """Convert a number, or an ISO 8601 time if the column is a time."""
    try:
        return int(value)
    except ValueError:
        if not _is_time(column) or not isinstance(value, str):
            raise
        return parse_utc_ms(value)


def _is_time(column: str) -> bool:
    return column.endswith(("_ms", "_time"))


def _checked_text(column: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{column} cannot be compared with {value!r}: not valid Unicode") from None
    return value
