"""`rayhistory sql`: a read-only SQL query on the tables of one or many sessions.

The query runs in an in-memory database: a single SELECT, no files except those of the tables, no extensions, no
settings, and limits on memory and time. With --server it runs there, if the server allows it.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import duckdb

from rayhistory.cli import output
from rayhistory.cli.arguments import parse_age, value_type
from rayhistory.cli.client import open_client
from rayhistory.cli.inspect.index_access import INDEX_TIMEOUT_S, IndexedSession, open_index, open_resolver
from rayhistory.cli.session_args import add_session_arguments, server_and_session
from rayhistory.errors import IndexDamaged, IndexFailed, UsageError
from rayhistory.index.query.sql_sandbox import (
    SqlLimits,
    TableSources,
    check_query,
    duckdb_message,
    execute,
    mentioned_tables,
    open_sandbox,
)
from rayhistory.server.history_api.api_types import MAX_SQL_ROWS, SqlRows
from rayhistory.server.resolve import SessionResolver
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings, format_value, parse_duration, parse_size

_CONCURRENT_SESSIONS = 4
_BATCH_ROWS = 100
_DEFAULT_MEMORY_BYTES, _DEFAULT_TIMEOUT_S = 1 << 30, 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "query",
        metavar="QUERY",
        help="SELECT statement, such as: select state, count(*) from tasks group by all; - reads standard input",
    )
    add_session_arguments(parser)
    parser.add_argument(
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
    if _is_query(arguments.session or "") and not _is_query(arguments.query):
        raise UsageError("the query comes before the session: use rayhistory sql QUERY SESSION")
    if arguments.query == "-":
        arguments.query = sys.stdin.read()
    check_query(arguments.query)
    if arguments.all and arguments.session:
        raise UsageError("--all queries all sessions: omit SESSION")
    if arguments.since is not None and not arguments.all:
        raise UsageError("--since requires --all")
    server, _ = server_and_session(arguments)
    if server and arguments.all:
        raise UsageError("--all reads the store: omit --server, or unset RAYHISTORY_SERVER")
    return asyncio.run(_run_on_server(arguments, settings) if server else _run(arguments, settings))


def _is_query(text: str) -> bool:
    """Return whether a text is a query. Names of sessions contain no spaces."""
    return text == "-" or " " in text.strip()


async def _run_on_server(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run the query on a server, within its limits of rows, memory and time."""
    async with open_client(arguments, settings) as client:
        result = await client.post("api/history/sql", {"query": arguments.query, "limit": MAX_SQL_ROWS}, SqlRows)
    with output.row_writer(arguments, result.columns, {}) as add:
        add(row.values() for row in result.rows)
    if not result.complete:
        sys.stderr.write("rayhistory: the result has more rows than the server returns: select fewer rows\n")
    return 0 if result.complete else 1


async def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_resolver(settings) as resolver:
        if arguments.all:
            entries = _started_within(await resolver.catalog.entries(), arguments.since)
            indexes = await _open_indexes(resolver, entries)
            complete = len(indexes) == len(entries)
        else:
            indexes, complete = [await open_index(resolver, arguments.session or "")], True
        sources = await _table_sources(indexes, arguments.query, with_ref=arguments.all)
        await asyncio.to_thread(_execute, arguments, sources)
    return 0 if complete else 1


def _started_within(entries: list[CatalogEntry], age: float | None) -> list[CatalogEntry]:
    if not entries:
        raise UsageError("the store has no sessions yet: record one with rayhistory run -- python my_job.py")
    since = 0 if age is None else time.time() - age
    recent = [entry for entry in entries if entry.appeared >= since]
    if not recent:
        raise UsageError("no session started within --since: use a longer duration")
    return recent


async def _open_indexes(resolver: SessionResolver, entries: list[CatalogEntry]) -> list[IndexedSession]:
    """Open the indexes of all sessions. A session that cannot be read is reported and skipped."""
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


async def _table_sources(indexes: list[IndexedSession], query: str, *, with_ref: bool) -> TableSources:
    """Fetch the tables that the query mentions. With several sessions, each row has columns for its session."""
    tables = sorted({table for _, index in indexes for table in index.tables})
    sources: TableSources = {table: [] for table in mentioned_tables(query, tables)}
    for ref, index in indexes:
        for table in set(index.tables) & set(sources):
            sources[table].append((_ref_columns(ref) if with_ref else "", await index.read((table,), str)))
    return sources


def _execute(arguments: argparse.Namespace, sources: TableSources) -> None:
    with (
        output.atomic_file(arguments.parquet) if arguments.parquet else nullcontext() as file,
        tempfile.TemporaryDirectory(prefix="rayhistory-sql-") as scratch,
        open_sandbox(sources, SqlLimits(arguments.memory, arguments.timeout), Path(scratch), file) as database,
    ):
        try:
            if file:
                output.write_parquet(file, database.sql(arguments.query))
            else:
                cursor = execute(database, arguments.query)
                names = [column[0] for column in cursor.description or []]
                with output.row_writer(arguments, names, {}) as add:
                    while rows := cursor.fetchmany(_BATCH_ROWS):
                        add(rows)
        except duckdb.InterruptException:
            raise UsageError(
                f"query cancelled after {format_value(arguments.timeout)}: "
                "use a query that reads fewer rows, or a longer --timeout"
            ) from None
        except duckdb.OutOfMemoryException:
            raise UsageError(
                f"query needs more memory than --memory={format_value(arguments.memory)}: "
                "use a query that reads fewer rows, or a larger --memory"
            ) from None
        except duckdb.IOException as error:
            raise UsageError(
                f"cannot read a table: {duckdb_message(error)}; use fewer sessions or a larger --cache-size"
            ) from None
        except duckdb.Error as error:
            raise UsageError(duckdb_message(error)) from None


def _ref_columns(ref: SessionRef) -> str:
    return f"'{ref.namespace}' AS namespace, '{ref.cluster}' AS cluster, '{ref.session}' AS session, "
