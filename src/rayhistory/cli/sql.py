"""`rayhistory sql` and `rayhistory export`: questions that no page foresees, on the tables of one or many sessions.

The query runs in a database of its own that can only read: a single SELECT, no file but those of the tables, no
extension, no setting, and limits on memory and time.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.cli import output
from rayhistory.cli.choice import selected
from rayhistory.cli.retention import parse_age, read_as
from rayhistory.errors import DamagedIndex, FoldFailed, SessionNotFound, UsageError
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.query import OpenIndex
from rayhistory.layout import Layout, SessionRef
from rayhistory.server.catalogue import Catalogue, Entry
from rayhistory.server.resolve import Resolver
from rayhistory.settings import Settings, parse_duration, parse_size, show
from rayhistory.storage import open_store

_PATIENCE = 24 * 3600.0
_AT_ONCE = 4
_PORTION = 100
_MEMORY, _TIME = 1 << 30, 300.0
_SPILLED = "8GiB"

_NAMES = "session, namespace/cluster or namespace/~rayjob/name"
_ONE_SELECT = "give one SELECT: the tables can only be read"
_HARMLESS = {"range", "generate_series", "unnest", "json_each", "json_tree", "repeat"}

Opened = tuple[SessionRef, OpenIndex]
Sources = dict[str, list[tuple[SessionRef, str]]]
"""For each table, where the rows of each session are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="a SELECT, as: select state, count(*) from tasks group by all")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="SESSION", default="", help=f"{_NAMES} (default: the newest)")
    which.add_argument("--all", action="store_true", help="all sessions: tables have namespace, cluster and session")
    parser.add_argument(
        "--since", type=read_as(parse_age), metavar="AGE", help="with --all: that began less long ago, as 7d, 2w, 12h"
    )
    parser.add_argument(
        "--memory", type=read_as(parse_size), default=_MEMORY, metavar="SIZE",
        help=f"what the query may use (default: {show(_MEMORY)})",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=read_as(parse_duration), default=_TIME, metavar="DURATION",
        help=f"when it is stopped (default: {show(_TIME)})",
    )  # fmt: skip
    output.add_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    check(arguments.query)
    if arguments.since is not None and not arguments.all:
        raise UsageError("--since goes with --all")
    return asyncio.run(_run(arguments, settings))


async def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _opened(settings) as resolver:
        if arguments.all:
            entries = _since(await resolver.catalogue.entries(), arguments.since)
            indexes = await _indexes(resolver, entries)
            complete = len(indexes) == len(entries)
        else:
            indexes, complete = [await _index(resolver, arguments.session)], True
        sources = await _sources(indexes, arguments.query)
        await asyncio.to_thread(_answer, arguments, sources)
    return 0 if complete else 1


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Resolver]:
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    builder = IndexBuilder(settings, store, layout)
    try:
        yield Resolver(Catalogue(store, layout, settings.vanished_after), builder, store, layout)
    finally:
        await builder.close()
        await store.close()


async def _index(resolver: Resolver, name: str) -> Opened:
    try:
        view = await resolver.view(await selected(resolver.catalogue, name), _PATIENCE)
    except SessionNotFound as error:
        raise UsageError(str(error)) from None
    return view.ref, view.index


def _since(entries: list[Entry], age: float | None) -> list[Entry]:
    if not entries:
        raise UsageError("the store holds no session yet: record one with rayhistory run -- python my_job.py")
    since = 0 if age is None else (time.time() - age) * 1000
    found = [entry for entry in entries if (entry.started_ms or 0) >= since]
    if not found:
        raise UsageError("no session began so late: give a longer --since")
    return found


async def _indexes(resolver: Resolver, entries: list[Entry]) -> list[Opened]:
    """Of all that can be read; what cannot be is named, and left out."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(entry: Entry) -> Opened | None:
        async with places:
            try:
                closing = await resolver.catalogue.closing(entry)
                return entry.ref, await resolver.builder.open(entry.ref, closing, _PATIENCE)
            except (FoldFailed, DamagedIndex) as error:
                if len(entries) == 1:
                    raise
                sys.stderr.write(f"rayhistory: left out: {error}\n")
                return None

    return [found for found in await asyncio.gather(*map(one, entries)) if found]


async def _sources(indexes: list[Opened], query: str) -> Sources:
    """Fetches the tables that the query names; all of them when it names none, as in `show tables`."""
    words = set(re.findall(r"\w+", query.lower()))
    known = sorted({table for _, index in indexes for table in index.tables})
    sources: Sources = {table: [] for table in known if table in words} or {table: [] for table in known}
    for ref, index in indexes:
        for table in set(index.tables) & set(sources):
            sources[table].append((ref, await index.read((table,), str)))
    return sources


def check(query: str) -> None:
    """Whether this is one SELECT of tables; DuckDB's own parser says so, and nothing is run.

    Functions that stand in the place of a table can do anything, from reading files to writing logs: a few are known to
    be harmless.
    """
    try:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(_ONE_SELECT)
        found = duckdb.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
    except duckdb.Error as error:
        raise UsageError(f"this is no SQL: {output.line_of(error)}") from None
    tree = msgspec.json.decode(found[0] if found else "{}")
    if tree.get("error", True):
        raise UsageError(_ONE_SELECT)
    if others := set(_table_functions(tree)) - _HARMLESS:
        raise UsageError(f"{', '.join(sorted(others))} cannot be read from: there are the tables, and "
                         f"{', '.join(sorted(_HARMLESS))}")  # fmt: skip


def _table_functions(tree: Any) -> Iterator[str]:
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("type") == "TABLE_FUNCTION":
                yield str(node["function"]["function_name"]).lower()
            left += node.values()
        elif isinstance(node, list):
            left += node


def _answer(arguments: argparse.Namespace, sources: Sources) -> None:
    with (
        output.whole_file(arguments.parquet) if arguments.parquet else nullcontext() as file,
        tempfile.TemporaryDirectory(prefix="rayhistory-sql-") as scratch,
        _database(arguments, sources, scratch, file) as database,
        _stopped_after(database, arguments.timeout),
    ):
        try:
            if file:
                output.write_parquet(file, database.sql(arguments.query))
            else:
                cursor = database.execute(arguments.query)
                names = [column[0] for column in cursor.description or []]
                with output.writer(arguments, names, {}) as add:
                    while rows := cursor.fetchmany(_PORTION):
                        add(rows)
        except duckdb.InterruptException:
            raise UsageError(
                f"stopped after {show(arguments.timeout)}: ask for less, or give a longer --timeout"
            ) from None
        except duckdb.OutOfMemoryException:
            raise UsageError(f"{show(arguments.memory)} are not enough: ask for less, or give more --memory") from None
        except duckdb.IOException as error:
            raise UsageError(
                f"a table cannot be read, ask for fewer sessions, or give more --cache-size: {output.line_of(error)}"
            ) from None
        except duckdb.Error as error:
            raise UsageError(output.line_of(error)) from None


@contextmanager
def _database(
    arguments: argparse.Namespace, sources: Sources, scratch: str, file: Path | None
) -> Iterator[duckdb.DuckDBPyConnection]:
    database = duckdb.connect(":memory:")
    allowed = [*_files(sources), *([_quoted(str(file))] if file else [])]
    try:
        for name, value in (
            ("memory_limit", f"'{arguments.memory}B'"), ("temp_directory", _quoted(scratch)),
            ("max_temp_directory_size", f"'{_SPILLED}'"), ("python_enable_replacements", "false"),
            ("autoinstall_known_extensions", "false"), ("autoload_known_extensions", "false"),
            ("allowed_paths", f"[{', '.join(allowed)}]"),
        ):  # fmt: skip
            database.execute(f"SET {name} = {value}")
        for table, places in sources.items():
            parts = [f"SELECT {_marks(ref) if arguments.all else ''}* FROM {source}" for ref, source in places]  # noqa: S608
            database.execute(f"CREATE VIEW {table} AS {' UNION ALL BY NAME '.join(parts)}")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        yield database
    finally:
        database.close()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _files(sources: Sources) -> list[str]:
    """The files of all tables, each as it stands in the SQL that reads it."""
    return [
        name for places in sources.values() for _, source in places for name in re.findall(r"'(?:[^']|'')*'", source)
    ]


def _marks(ref: SessionRef) -> str:
    return f"'{ref.namespace}' AS namespace, '{ref.cluster}' AS cluster, '{ref.session}' AS session, "


@contextmanager
def _stopped_after(database: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, database.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help=_NAMES)
    parser.add_argument("--to", metavar="DIR", required=True, help="directory for one Parquet file per table")


def export(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_export(arguments, settings))


async def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    async with _opened(settings) as resolver:
        ref, index = await _index(resolver, arguments.session)
        folder = _new_folder(Path(arguments.to), index.tables)
        for table in index.tables:
            await index.read((table,), partial(_copy, folder / f"{table}.parquet"))
    print(f"{ref.path}: {len(index.tables)} tables in {folder}")
    return 0


def _copy(path: Path, source: str) -> None:
    with output.whole_file(str(path)) as file, duckdb.connect() as database:
        output.write_parquet(file, database.sql(f"FROM {source}"))


def _new_folder(folder: Path, tables: list[str]) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from None
    there = [table for table in tables if (folder / f"{table}.parquet").exists()]
    if there:
        raise UsageError(f"{folder} has {there[0]}.parquet already: name another directory")
    return folder
