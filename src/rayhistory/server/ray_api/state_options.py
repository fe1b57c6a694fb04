"""The parameters of Ray's State API, read as Ray reads them, and its filters turned into those of the index."""

import binascii
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from rayhistory.errors import UsageError
from rayhistory.index.query import Filter
from rayhistory.server.state_schema import Column, Kind, Schema

DEFAULT_LIMIT = 100
_LARGEST = 2**63 - 1
_TRUE, _FALSE = ("True", "true", "1"), ("False", "false", "0")


class Condition(msgspec.Struct, frozen=True):
    """One filter: its value has the type of the column, or is still text where Ray does not convert it."""

    column: Column
    equal: bool
    value: str | int | bool

    def holds(self, row: dict[str, Any]) -> bool:
        """Whether a row that is not in the index passes."""
        found = row.get(self.column.name)
        if isinstance(found, str) and isinstance(self.value, str):
            return (found.lower() == self.value.lower()) == self.equal
        return (found == self.value) == self.equal


class Options(msgspec.Struct, frozen=True):
    limit: int
    detail: bool
    exclude_driver: bool
    conditions: tuple[Condition, ...]


def list_options(query: QueryParams, schema: Schema) -> Options:
    limit = _number(query, "limit", DEFAULT_LIMIT)
    _number(query, "timeout", 30)
    if limit < 0:
        raise UsageError(f"Given limit {limit} is negative. Use 0 or more.")
    return Options(
        min(limit, _LARGEST),
        _bool(query.get("detail", "false")),
        _bool(query.get("exclude_driver", "true")),
        conditions(query, schema),
    )


def _number(query: QueryParams, name: str, default: int) -> int:
    try:
        return int(query.get(name, default))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def conditions(query: QueryParams, schema: Schema) -> tuple[Condition, ...]:
    keys, predicates, values = (query.getlist(f"filter_{part}") for part in ("keys", "predicates", "values"))
    if not len(keys) == len(predicates) == len(values):
        raise UsageError(
            f"{len(keys)} filter_keys, {len(predicates)} filter_predicates and {len(values)} filter_values are given. "
            "Each filter needs one of each."
        )
    return tuple(_condition(schema, *given) for given in zip(keys, predicates, values, strict=True))


def _condition(schema: Schema, key: str, predicate: str, value: str) -> Condition:
    if predicate not in ("=", "!="):
        raise UsageError(f"Unsupported filter predicate {predicate} is given. Available predicates: =, !=.")
    name, equal = key.lower(), predicate == "="
    column = schema.column(name)
    if column is None or not column.filterable:
        supported = "{" + ", ".join(f"'{one}'" for one in schema.filterable) + "}"
        raise UsageError(
            f"The given filter column {name} is not supported. Enter filters with –-filter key=value "
            f"or –-filter key!=value Supported filter columns: {supported}"
        )
    if name in schema.id_sizes and (equal or schema.table == "tasks"):
        check_id(value, schema.id_sizes[name])
    if name == "state" and equal and schema.states and value.upper() not in schema.states:
        raise UsageError(f"Invalid {schema.what} state for filtering: {value.upper()}")
    return Condition(column, equal, _converted(column, equal, value))


def check_id(value: str, size: int) -> None:
    """Ray reads ids of filters before it looks for them."""
    try:
        length = len(binascii.unhexlify(value))
    except ValueError as error:
        raise UsageError(f"{error}: {value!r} is not an id") from None
    if length != size:
        raise UsageError(f"ID string needs to have length {size}, got {length}")


def _converted(column: Column, equal: bool, value: str) -> str | int | bool:
    if column.kind is Kind.INT:
        try:
            return int(value)
        except ValueError:
            raise UsageError(
                f"Invalid filter `--filter {column.name} {value}` for a int type column. "
                f"Please provide an integer filter `--filter {column.name} [int]`"
            ) from None
    if column.kind is Kind.BOOL:
        if value not in _TRUE + _FALSE:
            raise UsageError(
                f"Invalid filter `--filter {column.name} {value}` for a boolean type column. Please provide "
                f"`--filter {column.name} [True|true|1]` for True or "
                f"`--filter {column.name} [False|false|0]` for False."
            )
        return value in _TRUE
    if column.kind is Kind.MAYBE_INT and equal:
        return _int(value)
    if column.kind is Kind.MAYBE_BOOL and equal:
        return _bool(value)
    return value


def _int(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"Failed to convert a value {value} of type <class 'str'> to <class 'int'>") from None


def _bool(value: str) -> bool:
    if value not in _TRUE + _FALSE:
        raise UsageError(f"Failed to convert a value {value} of type <class 'str'> to <class 'bool'>")
    return value in _TRUE


def index_filters(schema: Schema, given: tuple[Condition, ...]) -> tuple[Filter, ...]:
    """The same conditions on the columns of the index."""
    filters: list[Filter] = []
    for condition in given:
        column, value = condition.column, condition.value
        if not column.source:
            filters.append(Filter(schema.key, "=", None))
            continue
        operator = "=" if condition.equal else "!="
        if column.optional and not condition.equal:
            filters.append(Filter(column.source, "!=", None))
        if isinstance(value, str) and column.kind not in (Kind.TEXT, Kind.ID):
            continue
        if column.absent is not None and _same(value, column.absent):
            filters.append(Filter(column.source, operator, None))
        elif column.kind is Kind.ID and condition.equal:
            filters.append(Filter(column.source, "in", (str(value).lower(),)))
        else:
            filters.append(Filter(column.source, operator, _bounded(value)))
    return tuple(filters)


def _same(value: str | int, absent: str | int) -> bool:
    return value.lower() == absent if isinstance(value, str) else value == absent


def _bounded(value: str | int) -> str | int:
    return value if isinstance(value, str | bool) else max(-_LARGEST, min(value, _LARGEST))
