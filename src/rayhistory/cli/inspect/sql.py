"""`rayhistory sql`: a read-only SQL query on the tables of one or many sessions.

The query runs in an in-memory database: a single SELECT, no files except those of the tables, no extensions, no
settings, and limits on memory and time.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.cli import output
from rayhistory.cli.arguments import parse_age, value_type
from rayhistory.cli.inspect.index_access import INDEX_TIMEOUT_S, IndexedSession, open_index, open_resolver
from rayhistory.cli.session_args import SESSION_NAMES
from rayhistory.errors import IndexDamaged, IndexFailed, UsageError
from rayhistory.server.resolve import SessionResolver
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings, format_value, parse_duration, parse_size

_CONCURRENT_SESSIONS = 4
_BATCH_ROWS = 100
_DEFAULT_MEMORY_BYTES, _DEFAULT_TIMEOUT_S = 1 << 30, 300.0
_MAX_SPILLED = "8GiB"

_ONE_SELECT = "use one SELECT statement: the tables are read-only"
_ALLOWED_TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "json_each", "json_tree", "repeat"}

TableSources = dict[str, list[tuple[SessionRef, str]]]
"""For each table, the SQL sources of its rows, one per session."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "query", metavar="QUERY", help="SELECT statement, such as: select state, count(*) from tasks group by all"
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--session", metavar="SESSION", default="", help=f"{SESSION_NAMES} (default: the newest)")
    scope.add_argument(
        "--all", action="store_true", help="query all sessions; adds the columns namespace, cluster and session"
    )
    parser.add_argument(
        "--since", type=value_type(parse_age), metavar="AGE",
        help="with --all: only sessions that started within this time, such as 7d, 2w or 12h",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=value_type(parse_size), default=_DEFAULT_MEMORY_BYTES, metavar="SIZE",
        help=f"memory limit of the query (default: {format_value(_DEFAULT_MEMORY_BYTES)})",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=value_type(parse_duration), default=_DEFAULT_TIMEOUT_S, metavar="DURATION",
        help=f"time limit of the query (default: {format_value(_DEFAULT_TIMEOUT_S)})",
    )  # fmt: skip
    output.add_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    _check_query(arguments.query)
    if arguments.since is not None and not arguments.all:
        raise UsageError("--since requires --all")
    return asyncio.run(_run(arguments, settings))


async def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_resolver(settings) as resolver:
        if arguments.all:
            entries = _started_within(await resolver.catalog.entries(), arguments.since)
            indexes = await _open_indexes(resolver, entries)
            complete = len(indexes) == len(entries)
        else:
            indexes, complete = [await open_index(resolver, arguments.session)], True
        sources = await _table_sources(indexes, arguments.query)
        await asyncio.to_thread(_execute, arguments, sources)
    return 0 if complete else 1


def _started_within(entries: list[CatalogEntry], age: float | None) -> list[CatalogEntry]:
    if not entries:
        raise UsageError("the store has no sessions yet: record one with rayhistory run -- python my_job.py")
    since = 0 if age is None else time.time() - age
    recent = [entry for entry in entries if entry.appeared >= since]
    if not recent:
        raise UsageError("no session started within --since: use a longer time")
    return recent


async def _open_indexes(resolver: SessionResolver, entries: list[CatalogEntry]) -> list[IndexedSession]:
    """Open the indexes of all sessions. One that cannot be read is reported and skipped."""
    semaphore = asyncio.Semaphore(_CONCURRENT_SESSIONS)

    async def open_one(entry: CatalogEntry) -> IndexedSession | None:
        async with semaphore:
            try:
                closing = await resolver.catalog.closing(entry)
                return entry.ref, await resolver.builder.open(entry.ref, closing, INDEX_TIMEOUT_S)
            except (IndexFailed, IndexDamaged) as error:
                if len(entries) == 1:
                    raise
                sys.stderr.write(f"rayhistory: session skipped: {error}\n")
                return None

    return [opened for opened in await asyncio.gather(*map(open_one, entries)) if opened]


async def _table_sources(indexes: list[IndexedSession], query: str) -> TableSources:
    """Fetch the tables that the query mentions, or all tables if it mentions none, as in `show tables`."""
    words = set(re.findall(r"\w+", query.lower()))
    tables = sorted({table for _, index in indexes for table in index.tables})
    sources: TableSources = {table: [] for table in tables if table in words} or {table: [] for table in tables}
    for ref, index in indexes:
        for table in set(index.tables) & set(sources):
            sources[table].append((ref, await index.read((table,), str)))
    return sources


def _check_query(query: str) -> None:
    """Raise UsageError unless DuckDB's parser finds a single SELECT. Nothing is executed.

    Table functions can do anything, from reading files to writing logs, so only harmless ones are allowed.
    """
    try:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(_ONE_SELECT)
        serialized = duckdb.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
    except duckdb.Error as error:
        raise UsageError(f"invalid SQL: {output.one_line(error)}") from None
    tree = msgspec.json.decode(serialized[0] if serialized else "{}")
    if tree.get("error", True):
        raise UsageError(_ONE_SELECT)
    if forbidden := set(_table_functions(tree)) - _ALLOWED_TABLE_FUNCTIONS:
        raise UsageError(
            f"table function not allowed: {', '.join(sorted(forbidden))} "
            f"(use the tables, or {', '.join(sorted(_ALLOWED_TABLE_FUNCTIONS))})"
        )


def _table_functions(tree: Any) -> Iterator[str]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node.get("type") == "TABLE_FUNCTION":
                yield str(node["function"]["function_name"]).lower()
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def _execute(arguments: argparse.Namespace, sources: TableSources) -> None:
    with (
        output.atomic_file(arguments.parquet) if arguments.parquet else nullcontext() as file,
        tempfile.TemporaryDirectory(prefix="rayhistory-sql-") as scratch,
        _open_database(arguments, sources, scratch, file) as database,
        _interrupt_after(database, arguments.timeout),
    ):
        try:
            if file:
                output.write_parquet(file, database.sql(arguments.query))
            else:
                cursor = database.execute(arguments.query)
                names = [column[0] for column in cursor.description or []]
                with output.row_writer(arguments, names, {}) as add:
                    while rows := cursor.fetchmany(_BATCH_ROWS):
                        add(rows)
        except duckdb.InterruptException:
            raise UsageError(
                f"query cancelled after {format_value(arguments.timeout)}: use a smaller query or a longer --timeout"
            ) from None
        except duckdb.OutOfMemoryException:
            raise UsageError(
                f"query needs more memory than --memory={format_value(arguments.memory)}: "
                "use a smaller query or a larger --memory"
            ) from None
        except duckdb.IOException as error:
            raise UsageError(
                f"cannot read a table, use fewer sessions or a larger --cache-size: {output.one_line(error)}"
            ) from None
        except duckdb.Error as error:
            raise UsageError(output.one_line(error)) from None


@contextmanager
def _open_database(
    arguments: argparse.Namespace, sources: TableSources, scratch: str, file: Path | None
) -> Iterator[duckdb.DuckDBPyConnection]:
    database = duckdb.connect(":memory:")
    allowed = [*_quoted_files(sources), *([_quote(str(file))] if file else [])]
    try:
        for name, value in (
            ("memory_limit", f"'{arguments.memory}B'"), ("temp_directory", _quote(scratch)),
            ("max_temp_directory_size", f"'{_MAX_SPILLED}'"), ("python_enable_replacements", "false"),
            ("autoinstall_known_extensions", "false"), ("autoload_known_extensions", "false"),
            ("allowed_paths", f"[{', '.join(allowed)}]"),
        ):  # fmt: skip
            database.execute(f"SET {name} = {value}")
        for table, parts in sources.items():
            selects = [f"SELECT {_ref_columns(ref) if arguments.all else ''}* FROM {source}" for ref, source in parts]  # noqa: S608
            database.execute(f"CREATE VIEW {table} AS {' UNION ALL BY NAME '.join(selects)}")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        yield database
    finally:
        database.close()


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted_files(sources: TableSources) -> list[str]:
    """Return the file names in the SQL sources, as quoted there."""
    return [name for parts in sources.values() for _, source in parts for name in re.findall(r"'(?:[^']|'')*'", source)]


def _ref_columns(ref: SessionRef) -> str:
    return f"'{ref.namespace}' AS namespace, '{ref.cluster}' AS cluster, '{ref.session}' AS session, "


@contextmanager
def _interrupt_after(database: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, database.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
