"""Read the tables of one index generation: filter, sort, page, count and group.

Opens the files of a generation, and refetches evicted or damaged ones. Other modules run their SQL through `read`;
visitors' SQL runs in another process, on the files of `stored_files`.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import duckdb
import msgspec

from rayhistory.errors import IndexDamaged, QueryFailed, StoreUnavailable, UsageError, disk_full_error
from rayhistory.events.table_columns import Type
from rayhistory.index.fold.part_tables import SUPERSEDED
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.response_files import LAST_RESPONSES_TABLE
from rayhistory.index.fold.served_tables import SERVED_TASK_TABLES
from rayhistory.index.manifest import MERGED_PREFIX, Manifest
from rayhistory.index.query.database import connection, execute, execute_within
from rayhistory.index.query.query import KEY_COLUMNS, Filter, Query, Row
from rayhistory.index.query.query_sql import MAX_INT64, checked_column, column_types, order_sql, where_sql
from rayhistory.index.query.table_choice import best_file, needs_key_lookup, task_id_range
from rayhistory.index.query.table_sources import TableSources
from rayhistory.index.sql_text import quoted

T = TypeVar("T")

_DERIVED_TABLES = ("task_list", LAST_RESPONSES_TABLE)
"""Smaller copies of served tables. They are read if they have all needed columns. Callers cannot name them."""
_BATCH_ROWS = 5_000
"""Maximum number of rows in a batch.

For more rows, DuckDB uses no top-N heap but sorts all rows, in twenty times the memory.
"""
_BATCH_BYTES = 8 << 20
"""Maximum size of the text in a batch. Jobs can write messages of any length."""
_PAGE_SHRINK_FACTOR = 8
_PARQUET_OPTIONS = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE 20000"
"""Options for Parquet files: small row groups, because each thread holds one in memory."""
_MAX_ERROR_CHARS = 500
_QUERY_ERRORS = (duckdb.DataError, duckdb.ParserException, duckdb.InterruptException, duckdb.NotImplementedException)
"""Errors caused by the query or by values in a table. Rebuilding the index would not help."""
_UNREADABLE = (duckdb.IOException, duckdb.InvalidInputException)
"""Errors of a damaged file. The header of a damaged page gives an error of no specific type."""


_MAX_READS = 20
"""Maximum number of attempts to read tables that other processes evict from the cache in the meantime."""


class FetchTable(Protocol):
    async def __call__(self, name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        """Return local copies of some of the manifest's files of a table; `refetch` replaces damaged copies."""


class OpenIndex:
    """The tables of one generation, fetched when needed. The local cache may evict files at any time."""

    def __init__(self, manifest: Manifest, fetch: FetchTable, sources: TableSources | None = None) -> None:
        self.manifest = manifest
        self._fetch = fetch
        self._sources = sources or TableSources(manifest)
        self._types_by_source: dict[str, dict[str, str]] = {}

    async def rows(self, query: Query) -> list[Row]:
        if query.sort and (query.limit or 0) > _BATCH_ROWS:
            found = [row async for batch in self.batches(query.with_order()) for row in batch]
            return _project(query.columns, found)
        return (await self.rows_within(query, None))[0]

    async def rows_within(self, query: Query, max_bytes: int | None) -> tuple[list[Row], bool]:
        """Return all rows and True, or the first rows with about `max_bytes` of text and False."""
        if needs_key_lookup(query):
            return await self._rows_by_key(query, max_bytes)
        table, steps = self._read_plan(query)
        found, complete = list[Row](), True
        for step, numbers in steps:
            if complete and (query.limit is None or len(found) < query.limit):
                rest = None if query.limit is None else query.limit - len(found)
                remaining = msgspec.structs.replace(step, limit=rest)
                more, complete = await self._read_files(
                    {table: numbers}, partial(self._fetch_rows, remaining, max_bytes)
                )
                found += more
        return found, complete

    async def prefetch(self, query: Query, *tables: str) -> None:
        """Fetch the files that `batches` reads first, and files of more tables.

        Callers do this before they take a lock, so that other requests do not wait for the store.
        """
        table, steps = self._read_plan(msgspec.structs.replace(query, limit=query.limit or _BATCH_ROWS))
        first = steps[0][1]
        numbers = {name: first if name in SERVED_TASK_TABLES else self._all_files(name) for name in tables}
        await asyncio.gather(
            self._fetch_needed(table, *tables, refetch=False),
            *(self._fetch(name, numbers[name], refetch=False) for name in tables),
            self._fetch(table, first, refetch=False),
        )

    def _read_plan(self, query: Query) -> tuple[str, list[tuple[Query, list[int]]]]:
        """Return the table to read, and one or two queries with the files to read for each.

        Files of a part are ranges of task ids, so a page sorted by id is often complete after the first range.
        """
        table, numbers = self._locate(query, query.columns or ("*",))
        ranges = Partitions(max(self._file_counts(table), default=1))
        by_id = query.limit is not None and query.order[:1] == ("task_id",) and table in SERVED_TASK_TABLES
        if not by_id or ranges.count == 1:
            return table, [(query, numbers)]
        low, high = task_id_range(query)
        first = ranges.between(low, high)[0]
        if first == ranges.count - 1:
            return table, [(query, numbers)]
        following, _ = ranges.bounds(first + 1)
        lower = msgspec.structs.replace(query, filters=(*query.filters, Filter("task_id", "<", following)))
        higher = msgspec.structs.replace(query, filters=(*query.filters, Filter("task_id", ">=", following)))
        steps = [(lower, self._files_between(table, low, min(high, ranges.bounds(first)[1])))]
        if others := self._files_between(table, following, high) if high >= following else []:
            steps.append((higher, others))
        return table, steps

    async def batches(self, query: Query) -> AsyncIterator[list[Row]]:
        """Yield the rows of a sorted query in batches, bounded by rows and by bytes.

        The query must select the columns of its `order`.
        """
        remaining = MAX_INT64 if query.limit is None else query.limit
        while remaining > 0:
            query = msgspec.structs.replace(query, limit=min(_BATCH_ROWS, remaining))
            found, complete = await self.rows_within(query, _BATCH_BYTES)
            if not found:
                return
            size = len(found)
            remaining = 0 if complete and size < (query.limit or 0) else remaining - size
            query = msgspec.structs.replace(query, after=query.position_of(found[-1]))
            batch = [found]
            del found
            yield batch.pop()  # keep no reference to the rows while a slow client reads them

    async def limit_to_bytes(self, query: Query, max_bytes: int) -> Query:
        """Lower the query's limit so that its rows have at most `max_bytes` of text. The last row may exceed it."""
        sizes = await self.text_sizes(query)
        fitting = bisect_left(list(accumulate(sizes)), max_bytes) + 1
        return msgspec.structs.replace(query, limit=min(fitting, query.limit or fitting))

    async def text_sizes(self, query: Query) -> list[int]:
        """Return the bytes of text in each row of a page."""
        return await self._read_query(query, self._text_sizes, query.columns or ("*",))

    async def _rows_by_key(self, query: Query, max_bytes: int | None) -> tuple[list[Row], bool]:
        """Read a large page of whole rows by sorting their keys first, because sorting whole rows needs much memory."""
        keys = KEY_COLUMNS[query.table]
        page = await self.rows(msgspec.structs.replace(query, columns=keys))
        if not page:
            return [], True
        ids = sorted({row["task_id"] for row in page})
        narrow = (Filter("task_id", ">=", ids[0]), Filter("task_id", "<=", ids[-1]), Filter("task_id", "in", ids))
        columns = (*query.columns, *keys) if query.columns else ()
        rows, complete = await self.rows_within(Query(query.table, columns, narrow), max_bytes)
        if not complete:  # rows come in no order, so that none of these can be used
            smaller = msgspec.structs.replace(query, limit=max(1, len(page) // _PAGE_SHRINK_FACTOR))
            return (await self.rows_within(smaller, max_bytes))[0], False
        found = {(row["task_id"], row["attempt_number"]): row for row in rows}
        return _project(query.columns, [found[row["task_id"], row["attempt_number"]] for row in page]), True

    async def write_parquet(self, query: Query, file: Path) -> None:
        """Write all rows of a query to a Parquet file, with little memory. Without a sort their order is undefined."""
        await self._read_query(query, partial(self._write_parquet, file), query.columns or ("*",))

    async def stored_files(self, table: str) -> list[Path]:
        """Return local copies of a table's files. Return none if its rows are not in files, but computed when read.

        The files may contain superseded rows. Their footers were checked, and damaged copies fetched again. The cache
        may evict a copy at any time.
        """
        stored, numbers = self._locate(Query(table), ("*",))
        if not self._sources.is_stored(stored):
            return []
        await self._read_files({stored: numbers}, partial(self._count, Query(table)))
        return await self._fetch(stored, numbers, refetch=False)

    def hidden_columns(self, table: str) -> tuple[str, ...]:
        """Return the hidden columns in the stored files of a table."""
        return self._sources.hidden(table)

    def has_superseded(self, table: str) -> bool:
        """Return whether the stored files of a table have superseded rows."""
        return self._sources.has_superseded(table)

    async def write_superseded(self, table: str, file: Path) -> None:
        """Write a Parquet file with the file number and row number of each superseded row in a table's stored files."""
        files = {SUPERSEDED: self._all_files(SUPERSEDED)}
        await self._read_files(files, lambda source: _copy(self._sources.superseded_rows(table, source), [], file))

    async def count(self, query: Query) -> int:
        return await self._read_query(query, self._count, ())

    async def max_rows(self, query: Query, small: int) -> int:
        """Return an upper bound of the number of rows. Rows are counted only if the limit is above `small`."""
        if query.limit is not None and query.limit <= small:
            return query.limit
        matching = await self.count(Query(query.table, filters=query.filters))
        return matching if query.limit is None else min(matching, query.limit)

    async def group(self, query: Query, by: tuple[str, ...], *, summed: str = "") -> list[Row]:
        """Count rows (`count`) per distinct value of the columns. A limit keeps the largest groups.

        `summed` names a column whose sum in each group is returned as `sum`.
        """
        needed = (*by, summed) if summed else by
        return await self._read_query(query, lambda query, source: self._group(query, source, by, summed), needed)

    async def histogram(self, query: Query, column: str, steps: range) -> list[Row]:
        """Return `bucket`, `count` of rows and `last` (highest value) for each step of a column.

        Values outside of the range count in the first or last bucket.
        """
        query = msgspec.structs.replace(query, filters=(*query.filters, Filter(column, "!=", None)))
        return await self._read_query(
            query, lambda query, source: self._histogram(query, source, column, steps), (column,)
        )

    @property
    def tables(self) -> list[str]:
        """The tables that a query may name."""
        return sorted(
            name for name in self.manifest.tables if not name.startswith(MERGED_PREFIX) and name not in _DERIVED_TABLES
        )

    async def columns(self, table: str) -> dict[str, str]:
        """Return the column types of a table by column name."""
        return await self._read_query(Query(table), lambda query, source: self._types(source), ("*",))

    async def read(self, files: tuple[str, ...], work: Callable[..., T]) -> T:
        """Call `work` in a thread with one SQL source per table."""
        return await self._read_files({file: self._all_files(file) for file in files}, work)

    async def _read_files(self, files: dict[str, list[int]], work: Callable[..., T]) -> T:
        """Run `work` on local copies. If another process evicts a copy before it is opened, fetch it again."""
        refetch = False
        for _ in range(_MAX_READS):
            fetches = [self._fetch(file, numbers, refetch=refetch) for file, numbers in files.items()]
            needed = self._fetch_needed(*files, refetch=refetch)
            others, tables = await asyncio.gather(needed, asyncio.gather(*fetches))
            sources = [
                self._sources.source(file, numbers, paths, others)
                for (file, numbers), paths in zip(files.items(), tables, strict=True)
            ]
            try:
                return await asyncio.to_thread(work, *sources)
            except duckdb.OutOfMemoryException as error:
                raise StoreUnavailable(f"query needs more memory than is free, try again later: {error}") from error
            except _QUERY_ERRORS as error:
                raise QueryFailed(f"cannot evaluate this query: {str(error)[:_MAX_ERROR_CHARS]}") from error
            except duckdb.Error as error:
                if full := disk_full_error(error):
                    raise full from error
                evicted = not all(path.exists() for paths in (*tables, *others.values()) for path in paths)
                is_unreadable = isinstance(error, _UNREADABLE) or type(error) is duckdb.Error
                if not evicted and (refetch or not is_unreadable):
                    raise IndexDamaged(f"cannot read index table {' or '.join(files)}: {error}") from error
                refetch = not evicted
        raise StoreUnavailable(
            "the cache is too small for this query: index tables were deleted while it read them; increase "
            "--cache-size or try again"
        )

    async def _fetch_needed(self, *tables: str, refetch: bool) -> dict[str, list[Path]]:
        """Fetch the files that are needed with these tables, such as lists of superseded rows."""
        names = self._sources.needed(tables)
        found = await asyncio.gather(*(self._fetch(name, self._all_files(name), refetch=refetch) for name in names))
        return dict(zip(names, found, strict=True))

    def _all_files(self, table: str) -> list[int]:
        return list(range(len(self.manifest.files_of(table))))

    def _file_counts(self, table: str) -> list[int]:
        """Return the number of files of a table in each part."""
        if table in self.manifest.files:
            return [len(self.manifest.files[table])]
        return [len(part.files.get(table, ())) for part in self.manifest.parts]

    def _files_between(self, table: str, low: str, high: str) -> list[int]:
        """Return the files of a task table that may contain ids from `low` to `high`."""
        found, first = list[int](), 0
        for count in self._file_counts(table):
            found += [first + number for number in Partitions(count).between(low, high) if count]
            first += count
        return found

    async def _read_query(self, query: Query, work: Callable[[Query, str], T], columns: tuple[str, ...]) -> T:
        """Run `work` on the files of the table that has the needed columns."""
        table, numbers = self._locate(query, columns)
        return await self._read_files({table: numbers}, partial(work, query))

    def _locate(self, query: Query, columns: tuple[str, ...]) -> tuple[str, list[int]]:
        """Return the smallest table with the needed columns, and its files that may have matching rows."""
        if query.table not in self.tables and query.table in KEY_COLUMNS:
            raise self.manifest.missing_table(query.table)
        if query.table not in self.tables:
            raise UsageError(f"unknown table {query.table!r}: use one of {', '.join(self.tables)}")
        table = best_file(query, columns)
        if table in SERVED_TASK_TABLES:
            return table, self._files_between(table, *task_id_range(query))
        return table, self._all_files(table)

    def _fetch_rows(self, query: Query, max_bytes: int | None, source: str) -> tuple[list[Row], bool]:
        return execute_within(*self._select(query, source), max_bytes)

    def _select(self, query: Query, source: str) -> tuple[str, list[Any]]:
        types = self._types(source)
        columns = ", ".join(checked_column(types, query.table, name) for name in query.columns) or "*"
        where, values = where_sql(types, query)
        sql = f"SELECT {columns} FROM {source}{where}{order_sql(types, query)}"
        return (sql if query.limit is None else f"{sql} LIMIT {int(query.limit)}"), values

    def _write_parquet(self, file: Path, query: Query, source: str) -> None:
        _copy(*self._select(query, source), file)

    def _text_sizes(self, query: Query, source: str) -> list[int]:
        types = self._types(source)
        names = [checked_column(types, query.table, name) for name in query.columns or types]
        size = " + ".join(f"coalesce(strlen({name}), 0)" for name in names if types[name] == Type.TEXT.sql) or "0"
        where, values = where_sql(types, query)
        page = f"SELECT {size} AS size FROM {source}{where}{order_sql(types, query)} LIMIT {int(query.limit or 0)}"
        return [row["size"] for row in execute(page, values)]

    def _count(self, query: Query, source: str) -> int:
        where, values = where_sql(self._types(source), query)
        return int(execute(f"SELECT count(*) AS n FROM {source}{where}", values)[0]["n"])

    def _group(self, query: Query, source: str, by: tuple[str, ...], summed: str) -> list[Row]:
        types = self._types(source)
        columns = ", ".join(checked_column(types, query.table, name) for name in by)
        where, values = where_sql(types, query)
        total = (
            f", least(sum({checked_column(types, query.table, summed)}), {MAX_INT64})::BIGINT AS sum" if summed else ""
        )
        groups = f"SELECT {columns}, count(*) AS count{total} FROM {source}{where} GROUP BY {columns}"
        if query.limit is not None:
            groups += f" ORDER BY count DESC, {columns} LIMIT {int(query.limit)}"
        # sorted, so that every server returns the same bytes
        return execute(f"SELECT * FROM ({groups}) ORDER BY {columns}", values)

    def _histogram(self, query: Query, source: str, column: str, steps: range) -> list[Row]:
        types = self._types(source)
        value = checked_column(types, query.table, column)
        where, values = where_sql(types, query)
        # 128 bits, because times are untrusted and their difference may not fit into 64
        bucket = f"greatest(least(({value}::HUGEINT - {steps.start}) // {steps.step}, {len(steps) - 1}), 0)::BIGINT"
        sql = f"SELECT {bucket} AS bucket, count(*) AS count, max({value}) AS last FROM {source}{where} GROUP BY bucket"
        return execute(sql, values)

    def _types(self, source: str) -> dict[str, str]:
        if source not in self._types_by_source:
            self._types_by_source[source] = column_types(connection(), source)
        return self._types_by_source[source]


def _copy(sql: str, values: list[Any], file: Path) -> None:
    """Write the rows of a query to a Parquet file."""
    try:
        execute(f"COPY ({sql}) TO {quoted(file)} ({_PARQUET_OPTIONS})", values)
    except duckdb.IOException as error:
        if str(file) in str(error) and not disk_full_error(error):  # the index is not damaged
            raise StoreUnavailable(f"cannot write the rows to a temporary file: {error}") from error
        raise


def _project(columns: tuple[str, ...], rows: list[Row]) -> list[Row]:
    """Drop columns that the query did not select."""
    if not columns or (rows and len(rows[0]) == len(columns)):
        return rows
    return [{name: row[name] for name in columns} for row in rows]
