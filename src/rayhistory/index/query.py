"""One query layer over the tables of an index: filter, sort, page, count, group.

Nobody else writes SQL for serving, but for the tree of calls (`lineage.py`), which stands on what is here.
"""

import asyncio
import os
import tempfile
import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import duckdb
import msgspec

from rayhistory.errors import DamagedIndex, StoreUnavailable, UsageError
from rayhistory.events.tables import TABLES, Type
from rayhistory.index.answers import LAST_ANSWERS, SNAPSHOTS
from rayhistory.index.derive import SERVED_AS_MERGED, SERVED_BY_TASK, TASK_LIST
from rayhistory.index.manifest import MERGED, Manifest
from rayhistory.index.merge import parquet
from rayhistory.index.parts import Parts

Row = dict[str, Any]
T = TypeVar("T")

_LISTED = set(TASK_LIST)
_CUT_SHORT = ("task_list", LAST_ANSWERS)
"""Tables that have nothing that others have not, and answer some questions sooner."""
_OPERATORS = {"=", "!=", "<", "<=", ">", ">=", "contains", "prefix", "in"}
_LARGEST = 2**63 - 1
_FEW = 16
_LARGE_PAGE = 1_000
_AT_ONCE = 5_000
"""Up to so many rows DuckDB keeps the first ones while it reads; for more it sorts everything, in twenty times the
memory."""
_TYPES = {kind.sql for kind in Type}
_BOOLS = {"true": True, "1": True, "false": False, "0": False}

KEYS: dict[str, tuple[str, ...]] = {
    "tasks": ("task_id", "attempt_number"),
    "actors": ("actor_id",),
    "jobs": ("type", "job_id", "submission_id"),
    "nodes": ("node_id",),
    "workers": ("worker_id",),
    "placement_groups": ("placement_group_id",),
    **{table.name: tuple(table.keys) for table in TABLES if table.name in (*SERVED_AS_MERGED, "gaps")},
}
"""The tables that are served, and the columns that tell their rows apart."""


class Filter(msgspec.Struct, frozen=True):
    """A condition on one column. As in Ray, case does not matter, and nothing differs from something."""

    column: str
    operator: str
    value: Any


class Query(msgspec.Struct, frozen=True):
    table: str
    columns: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    sort: tuple[str, ...] = ()
    """Column names; a leading minus means descending. What is absent comes last, either way."""
    limit: int | None = None
    after: tuple[Any, ...] | None = None
    """Only what comes after the row that has these values in the columns of the `order`."""

    @property
    def order(self) -> tuple[str, ...]:
        """The sort, made total by the columns that tell rows apart. A column that is named again changes nothing."""
        terms: dict[str, str] = {}
        for name in (*self.sort, *KEYS.get(self.table, ())):
            terms.setdefault(name.lstrip("-"), name)
        return tuple(terms.values())

    def with_order(self) -> "Query":
        """The same, with what is needed to go on after its last row."""
        if not self.columns:
            return self
        needed = (name.lstrip("-") for name in self.order)
        return msgspec.structs.replace(self, columns=tuple(dict.fromkeys((*self.columns, *needed))))

    def place_of(self, row: Row) -> tuple[Any, ...]:
        """The values of a row that has the columns of the order: what comes `after` it can be asked for with them."""
        return tuple(row[name.lstrip("-")] for name in self.order)


class Fetch(Protocol):
    async def __call__(self, name: str, parts: range, *, again: bool) -> list[Path]:
        """The local copies of some of a table's files."""


class OpenIndex:
    """The tables of one generation. They may leave the local cache at any time, and come back when they are needed."""

    def __init__(self, manifest: Manifest, fetch: Fetch) -> None:
        self.manifest = manifest
        self._fetch = fetch
        self._columns: dict[str, dict[str, str]] = {}

    async def rows(self, query: Query) -> list[Row]:
        if query.sort and (query.limit or 0) > _AT_ONCE:
            found = [row async for some in self.portions(query.with_order()) for row in some]
            return _only(query.columns, found)
        if _is_large(query):
            return await self._whole_rows(query)
        file, first, others = self._steps(query)
        found = await self._read({file: first}, partial(self._rows, query))
        if others and len(found) < (query.limit or 0):
            left = msgspec.structs.replace(query, limit=(query.limit or 0) - len(found))
            found += await self._read({file: others}, partial(self._rows, left))
        return found

    async def fetched(self, query: Query, *more: str) -> None:
        """Has the files at hand that `portions` reads first, and those of more tables beside it: what others wait for
        does not wait for the store then."""
        file, first, _ = self._steps(msgspec.structs.replace(query, limit=query.limit or _AT_ONCE))
        await self._fetch(file, first, again=False)
        for name in more:
            await self._fetch(name, first if name in SERVED_BY_TASK else self._all_parts(name), again=False)

    def _steps(self, query: Query) -> tuple[str, range, range]:
        """The table's file, and those of its parts that are read first, and when these have not enough.

        By id, each begins where the one before ends: the first often has enough.
        """
        file, parts = self._place(query, query.columns or ("*",))
        by_id = query.limit is not None and query.order[:1] == ("task_id",)
        return (file, parts[:1], parts[1:]) if by_id else (file, parts, parts[:0])

    async def portions(self, query: Query) -> AsyncIterator[list[Row]]:
        """The rows of a sorted query, some at a time; its columns must be, or have, its order's."""
        left = _LARGEST if query.limit is None else query.limit
        while left > 0:
            query = msgspec.structs.replace(query, limit=min(_AT_ONCE, left))
            portion = [await self.rows(query)]
            number = len(portion[0])
            if not number:
                return
            left = left - number if number == query.limit else 0
            query = msgspec.structs.replace(query, after=query.place_of(portion[0][-1]))
            yield portion.pop()  # nothing of it stays here: whoever asked may be slow

    async def fitting(self, query: Query, most_bytes: int) -> Query:
        """The same with so low a limit that all rows but the last have no more text than this together."""
        sizes = await self._run(query, self._sizes, ("*",))
        fitting = bisect_left(list(accumulate(sizes)), most_bytes) + 1
        return msgspec.structs.replace(query, limit=min(fitting, query.limit or fitting))

    async def _whole_rows(self, query: Query) -> list[Row]:
        """A large page of whole rows is cut by its keys first: sorting keys is cheap, sorting rows is not."""
        keys = KEYS[query.table]
        page = await self.rows(msgspec.structs.replace(query, columns=keys))
        if not page:
            return []
        ids = sorted({row["task_id"] for row in page})
        narrow = (Filter("task_id", ">=", ids[0]), Filter("task_id", "<=", ids[-1]), Filter("task_id", "in", ids))
        columns = (*query.columns, *keys) if query.columns else ()
        found = {(row["task_id"], row["attempt_number"]): row
                 for row in await self.rows(Query(query.table, columns, narrow))}  # fmt: skip
        return _only(query.columns, [found[row["task_id"], row["attempt_number"]] for row in page])

    async def count(self, query: Query) -> int:
        return await self._run(query, self._count, ())

    async def most(self, query: Query, few: int) -> int:
        """No more rows than this has a query; they are counted unless its limit is low."""
        if query.limit is not None and query.limit <= few:
            return query.limit
        passing = await self.count(Query(query.table, filters=query.filters))
        return passing if query.limit is None else min(passing, query.limit)

    async def group(self, query: Query, by: tuple[str, ...]) -> list[Row]:
        """Number of rows (`count`) per distinct value of the columns; of as many as the query's limit, the most."""
        return await self._run(query, lambda query, source: self._group(query, source, by), by)

    async def histogram(self, query: Query, column: str, start: int, step: int) -> list[Row]:
        """Number of rows (`count`) and the highest value (`last`) per step (`place`, from the start) of a column."""
        return await self._run(
            query, lambda query, source: self._histogram(query, source, column, start, step), (column,)
        )

    @property
    def tables(self) -> list[str]:
        """The tables that can be asked for."""
        return sorted(name for name in self.manifest.files if not name.startswith(MERGED) and name not in _CUT_SHORT)

    async def columns(self, table: str) -> dict[str, str]:
        """Names and types of a table's columns."""
        return await self._run(Query(table), lambda query, source: self._types(source), ("*",))

    async def read(self, files: tuple[str, ...], work: Callable[..., T]) -> T:
        """What the work makes of these tables, each given as something to select from; in a thread of its own."""
        return await self._read({file: self._all_parts(file) for file in files}, work)

    async def _read(self, files: dict[str, range], work: Callable[..., T]) -> T:
        for again in (False, True):
            sources = [parquet(await self._fetch(file, parts, again=again)) for file, parts in files.items()]
            try:
                return await asyncio.to_thread(work, *sources)
            except duckdb.OutOfMemoryException as error:
                raise StoreUnavailable(f"too much is asked at once: {error}") from error
            except duckdb.Error as error:
                if again or not isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
                    raise DamagedIndex(f"{' or '.join(files)} cannot be read: {error}") from error
        raise AssertionError

    def _all_parts(self, file: str) -> range:
        return range(len(self.manifest.sizes(file)))

    async def _run(self, query: Query, work: Callable[[Query, str], T], by: tuple[str, ...]) -> T:
        file, parts = self._place(query, by)
        return await self._read({file: parts}, partial(work, query))

    def _place(self, query: Query, by: tuple[str, ...]) -> tuple[str, range]:
        """The table that has the columns, and those of its files that have what is asked for.

        The tables of tasks are cut by ranges of ids.
        """
        if query.table not in self.tables and query.table in KEYS:
            raise DamagedIndex(f"generation {self.manifest.generation} of an index has no table {query.table}")
        if query.table not in self.tables:
            raise UsageError(f"no table {query.table!r}: there are {', '.join(self.tables)}")
        file = best_file(query, by)
        parts = self._all_parts(file)
        if file in SERVED_BY_TASK and len(parts) > 1:
            parts = Parts(len(parts)).between(*_ids_between(query))
        return file, parts

    def _rows(self, query: Query, source: str) -> list[Row]:
        types = self._types(source)
        columns = ", ".join(_known(types, query.table, name) for name in query.columns) or "*"
        where, values = condition_sql(types, query)
        sql = f"SELECT {columns} FROM {source}{where}{_order(types, query)}"
        if query.limit is not None:
            sql += f" LIMIT {int(query.limit)}"
        return _execute(sql, values)

    def _sizes(self, query: Query, source: str) -> list[int]:
        """How much text each row of a page has."""
        types = self._types(source)
        names = [_known(types, query.table, name) for name in query.columns or types]
        size = " + ".join(f"coalesce(strlen({name}), 0)" for name in names if types[name] == Type.TEXT.sql) or "0"
        where, values = condition_sql(types, query)
        page = f"SELECT {size} AS size FROM {source}{where}{_order(types, query)} LIMIT {int(query.limit or 0)}"
        return [row["size"] for row in _execute(page, values)]

    def _count(self, query: Query, source: str) -> int:
        where, values = condition_sql(self._types(source), query)
        return int(_execute(f"SELECT count(*) AS n FROM {source}{where}", values)[0]["n"])

    def _group(self, query: Query, source: str, by: tuple[str, ...]) -> list[Row]:
        types = self._types(source)
        columns = ", ".join(_known(types, query.table, name) for name in by)
        where, values = condition_sql(types, query)
        groups = f"SELECT {columns}, count(*) AS count FROM {source}{where} GROUP BY {columns}"
        if query.limit is not None:
            groups += f" ORDER BY count DESC, {columns} LIMIT {int(query.limit)}"
        # every server gives the same answer, to the byte
        return _execute(f"SELECT * FROM ({groups}) ORDER BY {columns}", values)

    def _histogram(self, query: Query, source: str, column: str, start: int, step: int) -> list[Row]:
        types = self._types(source)
        value = _known(types, query.table, column)
        where, values = condition_sql(types, query)
        place = f"({value} - {int(start)}) // {int(step)}"
        sql = f"SELECT {place} AS place, count(*) AS count, max({value}) AS last FROM {source}{where} GROUP BY place"
        return _execute(sql, values)

    def _types(self, source: str) -> dict[str, str]:
        if source not in self._columns:
            self._columns[source] = column_types(connection(), source)
        return self._columns[source]


def column_types(database: duckdb.DuckDBPyConnection, source: str) -> dict[str, str]:
    """Types stand in SQL, and the file that has them may be anybody's: there are none but those of our tables."""
    types = {name: kind for name, kind, *_ in database.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
    if unknown := set(types.values()) - _TYPES:
        raise DamagedIndex(f"a table has columns of other types than ours: {', '.join(sorted(unknown))[:200]}")
    return types


def best_file(query: Query, columns: tuple[str, ...]) -> str:
    """Tasks are kept twice: whole, by id; and what lists need, by state and time; that is smaller and prunes better.
    So are the last of the dashboard's answers."""
    if query.table == SNAPSHOTS and query.sort == ("-ns",) and query.limit == 1:
        return LAST_ANSWERS if all(condition.column == "uri" for condition in query.filters) else SNAPSHOTS
    if query.table != "tasks" or (query.limit is not None and query.sort[:1] == ("task_id",)):
        return query.table
    if any(condition.column == "task_id" and condition.operator in ("=", "in") for condition in query.filters):
        return query.table
    needed = {*columns, *(f.column for f in query.filters), *(name.lstrip("-") for name in query.sort)}
    return "task_list" if needed <= _LISTED else "tasks"


def _is_large(query: Query) -> bool:
    """Whether so many whole rows of tasks are to be sorted that it would take much memory; by id they are already."""
    if query.table != "tasks" or not query.sort or query.limit is None or query.limit <= _LARGE_PAGE:
        return False
    return query.order[0] != "task_id" and (not query.columns or not set(query.columns) <= _LISTED)


def _only(columns: tuple[str, ...], rows: list[Row]) -> list[Row]:
    """Rows without what was not asked for."""
    if not columns or (rows and len(rows[0]) == len(columns)):
        return rows
    return [{name: row[name] for name in columns} for row in rows]


def _ids_between(query: Query) -> tuple[str, str]:
    """The lowest and the highest id of tasks that can be among what is asked for."""
    low, high = "", "g"
    for one in query.filters:
        if one.column != "task_id" or not one.value:
            continue
        values = one.value if one.operator == "in" else [str(one.value).lower() if one.operator == "=" else one.value]
        if one.operator in ("=", "in", ">=", ">"):
            low = max(low, min(map(str, values)))
        if one.operator in ("=", "in", "<=", "<"):
            high = min(high, max(map(str, values)))
    if query.after and query.after[0] and query.order[0] == "task_id":
        low = max(low, str(query.after[0]))
    return low, high


def _known(types: dict[str, str], table: str, column: str) -> str:
    if column not in types or not column.isidentifier():  # it stands in SQL, and the file that has it may be anybody's
        raise UsageError(f"table {table!r} has no column {column!r}: there are {', '.join(types)}")
    return column


def _order(types: dict[str, str], query: Query) -> str:
    """Only what is cut needs a total order."""
    total = query.after is not None or (query.sort and query.limit is not None)
    terms = [
        f"{_known(types, query.table, name.lstrip('-'))} {'DESC' if name.startswith('-') else 'ASC'} NULLS LAST"
        for name in (query.order if total else query.sort)
    ]
    return f" ORDER BY {', '.join(terms)}" if terms else ""


def condition_sql(types: dict[str, str], query: Query) -> tuple[str, list[Any]]:
    """The filters of a query, and from where on its page begins, with the values that they need."""
    terms, values = [], []
    for condition in query.filters:
        column = _known(types, query.table, condition.column)
        term, more = _condition(column, types[column], condition)
        terms.append(term)
        values += more
    if query.after is not None:
        term, more = _after(types, query, query.after)
        terms.append(term)
        values += more
    return (f" WHERE {' AND '.join(terms)}" if terms else ""), values


def _after(types: dict[str, str], query: Query, last: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """What comes after a row. The first term says again what follows for the first column: it prunes."""
    if len(last) != len(query.order):
        raise UsageError(f"a place in this order has {len(query.order)} values, not {len(last)}")
    alternatives: list[str] = []
    values: list[Any] = []
    same_values: list[Any] = []
    same = ""
    for name, given in zip(query.order, last, strict=True):
        column = _known(types, query.table, name.lstrip("-"))
        if given is None:
            same += f"{column} IS NULL AND "
            continue
        value = _converted(column, types[column], given)
        alternatives.append(f"{same}({column} {'<' if name.startswith('-') else '>'} ? OR {column} IS NULL)")
        values += [*same_values, value]
        same += f"{column} = ? AND "
        same_values.append(value)
    if not alternatives:
        return "false", []
    term = f"({' OR '.join(alternatives)})"
    if last[0] is None:
        return term, values
    first = query.order[0]
    bound = f"({first.lstrip('-')} {'<=' if first.startswith('-') else '>='} ? OR {first.lstrip('-')} IS NULL)"
    if first in KEYS.get(query.table, ())[:1]:
        bound = f"{first} >= ?"
    return f"{bound} AND {term}", [values[0], *values]


def _condition(column: str, kind: str, condition: Filter) -> tuple[str, list[Any]]:
    operator, value = condition.operator, condition.value
    if operator not in _OPERATORS:
        raise UsageError(f"unknown operator {operator!r}: use one of {', '.join(sorted(_OPERATORS))}")
    if operator == "in":
        wanted = [_converted(column, kind, one) for one in value]
        if 0 < len(wanted) <= _FEW:
            return f"{column} IN ({', '.join('?' * len(wanted))})", wanted
        # As one text: DuckDB takes a second for ten thousand values from Python.
        return f"{column} IN (SELECT unnest(from_json(?, '[\"{kind}\"]')))", [msgspec.json.encode(wanted).decode()]
    if operator in ("contains", "prefix"):
        function = "contains" if operator == "contains" else "starts_with"
        return f"{function}(lower({column}::VARCHAR), lower(?))", [_text(column, str(value))]
    if value is None:
        if operator not in ("=", "!="):
            raise UsageError(f"{column} {operator} needs a value")
        return f"{column} IS {'NULL' if operator == '=' else 'NOT NULL'}", []
    value = _converted(column, kind, value)
    fold = isinstance(value, str) and operator in ("=", "!=")
    left, right = (f"lower({column})", "lower(?)") if fold else (column, "?")
    return f"{left} {'IS DISTINCT FROM' if operator == '!=' else operator} {right}", [value]


def _converted(column: str, kind: str, value: Any) -> Any:
    """The value as one of the column's type: text is read, and what cannot be is the asker's mistake."""
    if kind == "VARCHAR":
        return _text(column, str(value))
    if kind == "BOOLEAN":
        found = value if isinstance(value, bool) else _BOOLS.get(str(value).lower())
        if found is None:
            raise UsageError(f"{column} is true or false, not {value!r}")
        return found
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{column} is a number, not {value!r}") from None
    if abs(number) > _LARGEST:
        raise UsageError(f"{column} is never as large as {value}")
    return number


def _text(column: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{column} cannot be compared with {value!r}: that is no text") from None
    return value


_local = threading.local()
_root: duckdb.DuckDBPyConnection | None = None
_root_lock = threading.Lock()


def connection() -> duckdb.DuckDBPyConnection:
    """One database for the process, one cursor for each thread that asks."""
    global _root  # noqa: PLW0603
    if not hasattr(_local, "cursor"):
        with _root_lock:
            if _root is None:
                _root = duckdb.connect(":memory:")
                _root.execute("SET memory_limit = '224MiB'")
                _root.execute("SET threads = 2")
                _root.execute(f"SET temp_directory = '{tempfile.gettempdir()}/rayhistory-query-{os.getpid()}'")
                _root.execute("SET autoinstall_known_extensions = false")
            _local.cursor = _root.cursor()
    return _local.cursor  # type: ignore[no-any-return]


def _execute(sql: str, values: list[Any]) -> list[Row]:
    cursor = connection().execute(sql, values)
    names = [column[0] for column in cursor.description or []]
    rows: list[Row] = []
    while some := cursor.fetchmany(1_000):
        rows += [dict(zip(names, row, strict=True)) for row in some]
    return rows
