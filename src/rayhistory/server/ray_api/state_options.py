"""Query parameters of Ray's State API, parsed as Ray does, and its filters as filters of the index.

Error texts are copied from Ray, because its clients show or compare them.
"""

import binascii
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from rayhistory.errors import UsageError
from rayhistory.index.query.query import Filter
from rayhistory.index.query.query_params import check_filter_count
from rayhistory.server.ray_api.state_schema import FilterType, StateColumn, StateSchema

DEFAULT_LIMIT = 100
_MAX_INT64 = 2**63 - 1
_TRUE, _FALSE = ("True", "true", "1"), ("False", "false", "0")


class StateFilter(msgspec.Struct, frozen=True):
    """One filter. The value has the type of the column, or is text if Ray does not convert it."""

    column: StateColumn
    equal: bool
    value: str | int | bool

    def matches(self, row: dict[str, Any]) -> bool:
        """Return True if a row passes the filter. Used for rows that do not come from the index."""
        value = row.get(self.column.name)
        if isinstance(value, str) and isinstance(self.value, str):
            return (value.lower() == self.value.lower()) == self.equal
        return (value == self.value) == self.equal


class ListOptions(msgspec.Struct, frozen=True):
    limit: int
    detail: bool
    exclude_driver: bool
    filters: tuple[StateFilter, ...]


def parse_list_options(query: QueryParams, schema: StateSchema) -> ListOptions:
    limit = _number(query, "limit", DEFAULT_LIMIT)
    _number(query, "timeout", 30)
    if limit < 0:
        raise UsageError(f"Given limit {limit} is negative. Use 0 or more.")
    return ListOptions(
        min(limit, _MAX_INT64),
        _bool(query.get("detail", "false")),
        _bool(query.get("exclude_driver", "true")),
        parse_filters(query, schema),
    )


def _number(query: QueryParams, name: str, default: int) -> int:
    try:
        return int(query.get(name, default))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def parse_filters(query: QueryParams, schema: StateSchema) -> tuple[StateFilter, ...]:
    keys, predicates, values = (query.getlist(f"filter_{part}") for part in ("keys", "predicates", "values"))
    if not len(keys) == len(predicates) == len(values):
        raise UsageError(
            f"{len(keys)} filter_keys, {len(predicates)} filter_predicates and {len(values)} filter_values are given. "
            "Each filter needs one of each."
        )
    filters = check_filter_count(list(zip(keys, predicates, values, strict=True)))
    return tuple(_parse_filter(schema, *parts) for parts in filters)


def _parse_filter(schema: StateSchema, key: str, predicate: str, value: str) -> StateFilter:
    if predicate not in ("=", "!="):
        raise UsageError(f"Unsupported filter predicate {predicate} is given. Available predicates: =, !=.")
    name, equal = key.lower(), predicate == "="
    column = schema.column(name)
    if column is None or not column.filterable:
        supported = "{" + ", ".join(f"'{column}'" for column in schema.filterable) + "}"
        raise UsageError(
            f"The given filter column {name} is not supported. Enter filters with –-filter key=value "
            f"or –-filter key!=value Supported filter columns: {supported}"
        )
    if name in schema.id_sizes and (equal or schema.table == "tasks"):
        check_id(value, schema.id_sizes[name])
    if name == "state" and equal and schema.states and value.upper() not in schema.states:
        raise UsageError(f"Invalid {schema.state_label} state for filtering: {value.upper()}")
    return StateFilter(column, equal, _convert(column, equal, value))


def check_id(value: str, size: int) -> None:
    """Raise UsageError for an invalid id, as Ray does before it looks for the id."""
    try:
        length = len(binascii.unhexlify(value))
    except ValueError as error:
        raise UsageError(f"{error}: {value!r} is not an id") from None
    if length != size:
        raise UsageError(f"ID string needs to have length {size}, got {length}")


def _convert(column: StateColumn, equal: bool, value: str) -> str | int | bool:
    if column.filter_type is FilterType.INT:
        try:
            return int(value)
        except ValueError:
            raise UsageError(
                f"Invalid filter `--filter {column.name} {value}` for a int type column. "
                f"Please provide an integer filter `--filter {column.name} [int]`"
            ) from None
    if column.filter_type is FilterType.BOOL:
        if value not in _TRUE + _FALSE:
            raise UsageError(
                f"Invalid filter `--filter {column.name} {value}` for a boolean type column. Please provide "
                f"`--filter {column.name} [True|true|1]` for True or "
                f"`--filter {column.name} [False|false|0]` for False."
            )
        return value in _TRUE
    if column.filter_type is FilterType.MAYBE_INT and equal:
        return _int(value)
    if column.filter_type is FilterType.MAYBE_BOOL and equal:
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


def index_filters(schema: StateSchema, state_filters: tuple[StateFilter, ...]) -> tuple[Filter, ...]:
    """Convert filters to filters on the columns of the index."""
    filters: list[Filter] = []
    for state_filter in state_filters:
        column, value = state_filter.column, state_filter.value
        if not column.index_column:
            filters.append(Filter(schema.key, "=", None))
            continue
        operator = "=" if state_filter.equal else "!="
        if column.optional and not state_filter.equal:
            filters.append(Filter(column.index_column, "!=", None))
        if isinstance(value, str) and column.filter_type not in (FilterType.TEXT, FilterType.ID):
            continue
        if column.default is not None and _equals_default(value, column.default):
            filters.append(Filter(column.index_column, operator, None))
        elif column.filter_type is FilterType.ID and state_filter.equal:
            filters.append(Filter(column.index_column, "in", (str(value).lower(),)))
        else:
            filters.append(Filter(column.index_column, operator, _clamp_int64(value)))
    return tuple(filters)


def _equals_default(value: str | int, default: str | int) -> bool:
    return value.lower() == default if isinstance(value, str) else value == default


def _clamp_int64(value: str | int) -> str | int:
    return value if isinstance(value, str | bool) else max(-_MAX_INT64, min(value, _MAX_INT64))
