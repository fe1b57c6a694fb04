"""Parse queries from URLs and command lines: `where=state=FAILED`, `sort=-start_time_ms`.

`where.py` has the grammar of conditions. A cursor holds the values of a page's last row, so a late
page costs as much as the first.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from rayhistory.errors import UsageError
from rayhistory.index.query.query import KEY_COLUMNS, AllOf, Condition, Query, Row
from rayhistory.index.query.query_sql import MAX_INT64
from rayhistory.index.query.where import MAX_FILTERS, count_filters, parse_where

T = TypeVar("T")

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000


class _Cursor(msgspec.Struct, array_like=True):
    order: tuple[str, ...]
    values: tuple[str | int | float | bool | None, ...]


def parse_query(
    table: str,
    *,
    columns: str = "",
    where: Iterable[str] = (),
    sort: str = "",
    limit: str | int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Query:
    """Parse a query. Column names are checked when it runs."""
    by = _names(sort) or KEY_COLUMNS.get(table, ())
    filters = parse_filters(where)
    query = Query(table, _distinct(_names(columns)), filters, by, _limit(limit))
    return msgspec.structs.replace(query, after=_parse_cursor(cursor, query)) if cursor else query


def parse_unlimited_query(
    table: str, *, columns: str = "", where: Iterable[str] = (), sort: str = "", limit: str = ""
) -> Query:
    """Parse a query for all rows, or for `limit` rows. Without a sort their order is undefined, which saves sorting."""
    query = parse_query(table, columns=columns, where=where)
    rows = _number("limit", limit) if limit else None
    if rows is not None and not 0 < rows <= MAX_INT64:
        raise UsageError(f"limit={limit}: use 1 or more")
    return msgspec.structs.replace(query, sort=_names(sort), limit=rows)


def parse_filters(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Parse the conditions of a request, which must all match."""
    parsed = [parse_where(text) for text in check_filter_count(list(texts))]
    filters = [
        each for condition in parsed for each in (condition.conditions if isinstance(condition, AllOf) else [condition])
    ]
    if (count := sum(map(count_filters, filters))) > MAX_FILTERS:
        raise too_many_filters(count)
    return tuple(filters)


def check_filter_count(filters: list[T]) -> list[T]:
    """Return the filters of a request; raise UsageError if there are too many."""
    if len(filters) > MAX_FILTERS:
        raise too_many_filters(len(filters))
    return filters


def too_many_filters(count: int) -> UsageError:
    return UsageError(f"{count} filters are given: use at most {MAX_FILTERS}")


def first_page(query: Query) -> Query:
    """Return the same query, starting at its first page."""
    return msgspec.structs.replace(query, after=None)


def cursor_after(query: Query, last: Row) -> str:
    """Return the cursor of the page after the row `last`. The query must come from `Query.with_order()`."""
    cursor = _Cursor(query.order, query.position_of(last))
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def _parse_cursor(cursor: str, query: Query) -> tuple[str | int | float | bool | None, ...]:
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(raw, type=_Cursor)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise UsageError("invalid cursor: pass `next` of the previous page unchanged") from None
    if found.order != query.order:
        raise UsageError("cursor belongs to another table or sort order: use it only with the query that returned it")
    return found.values


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"column {twice!r} is given more than once")
    return names


def _number(name: str, text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text}: use a number") from None


def _limit(text: str | int) -> int:
    limit = _number("limit", text)
    if not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"limit={limit}: use 1 to {MAX_LIMIT}, and the cursor for more rows")
    return limit
