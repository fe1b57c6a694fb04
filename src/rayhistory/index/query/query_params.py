"""Questions to the tables as text, from addresses and command lines: `where=state=FAILED`, `sort=-start_time_ms`.

Operators: = != < <= > >=, ~ (contains) and ^= (begins with). A question about more rows than are wanted at once is
continued with the cursor of its last page: the values of that page's last row, so that it costs the same however far
one has come.
"""

import base64
import binascii
import re
from collections.abc import Iterable

import msgspec

from rayhistory.errors import UsageError
from rayhistory.index.query import KEYS, Filter, Query, Row

DEFAULT_LIMIT = 100
LARGEST_LIMIT = 10_000

_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|\^=|=|<|>|~)(.*)", re.DOTALL)
_NAMED = {"~": "contains", "^=": "prefix"}


class _Cursor(msgspec.Struct, array_like=True):
    order: tuple[str, ...]
    values: tuple[str | int | float | bool | None, ...]


def question(
    table: str,
    *,
    columns: str = "",
    where: Iterable[str] = (),
    sort: str = "",
    limit: str | int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Query:
    """The query that the text asks for; whether its columns exist is seen when it is run."""
    by = _names(sort) or KEYS.get(table, ())
    query = Query(table, _names(columns), tuple(map(condition, where)), by, _limit(limit))
    return msgspec.structs.replace(query, after=_place(cursor, query)) if cursor else query


def condition(text: str) -> Filter:
    """A filter; without a value it asks for rows that have none there, or that have one."""
    found = _CONDITION.fullmatch(text)
    if not found:
        raise UsageError(f"not a condition: {text!r} (write column, one of = != < <= > >= ~ ^=, and a value)")
    column, operator, value = found.groups()
    absent = not value.strip() and operator in ("=", "!=")
    return Filter(column, _NAMED.get(operator, operator), None if absent else value.strip())


def without_place(query: Query) -> Query:
    """The same from its first page on."""
    return msgspec.structs.replace(query, after=None)


def cursor_after(query: Query, last: Row) -> str:
    """How to go on after a row of a query `with_order()`."""
    place = _Cursor(query.order, query.place_of(last))
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _place(cursor: str, query: Query) -> tuple[str | int | float | bool | None, ...]:
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(raw, type=_Cursor)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise UsageError("the cursor cannot be read: use `next` of the page before, as it is") from None
    if found.order != query.order:
        raise UsageError("the cursor is that of another table or sort: ask the same question again to go on")
    return found.values


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _limit(text: str | int) -> int:
    try:
        limit = int(text)
    except ValueError:
        raise UsageError(f"limit is a number, not {text!r}") from None
    if not 1 <= limit <= LARGEST_LIMIT:
        raise UsageError(f"limit is from 1 to {LARGEST_LIMIT}, not {limit}: go on with the cursor for more")
    return limit
