"""The sandbox for SQL queries: one SELECT on the tables of sessions, in a database that cannot open other files."""

import difflib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.errors import UsageError
from rayhistory.index.sql_text import quoted

_MAX_SPILLED = "8GiB"
_ONE_SELECT = "use one SELECT statement: the tables are read-only"
_ALLOWED_TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "json_each", "json_tree", "repeat"}
_DUCKDB_TABLES = ("duckdb_", "pg_", "pragma_", "sqlite_")
_MAX_ERROR_CHARS = 500

TableSources = dict[str, list[tuple[str, str]]]
"""For each table, a pair per session: SQL of the columns to add, and the SQL source of the rows."""


class SqlLimits(msgspec.Struct, frozen=True):
    memory: int
    timeout_s: float


def mentioned_tables(query: str, tables: list[str]) -> list[str]:
    """Return the tables that a query mentions. If it mentions none, as in `show tables`, return all.

    Raise UsageError if it reads a table that does not exist. DuckDB would suggest tables of its own.
    """
    for name in sorted(_read_tables(_syntax_tree(query)) - set(tables)):
        near = difflib.get_close_matches(name, tables, 1)
        hint = f"did you mean {near[0]}?" if near else f"the tables are {', '.join(sorted(tables))}"
        raise UsageError(f"table {name} does not exist: {hint}")
    words = set(re.findall(r"\w+", query.lower()))
    return [table for table in tables if table in words] or tables


def check_query(query: str) -> None:
    """Raise UsageError unless DuckDB's parser finds a single SELECT. Nothing is executed.

    Table functions can do anything, from reading files to writing logs, so only harmless ones are allowed.
    """
    try:
        with duckdb.connect(":memory:") as database:
            statements = database.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError(_ONE_SELECT)
            tree = _syntax_tree(query, database)
    except duckdb.Error as error:
        raise UsageError(f"invalid SQL: {duckdb_message(error)}") from None
    if tree.get("error", True):
        raise UsageError(_ONE_SELECT)
    if forbidden := set(_table_functions(tree)) - _ALLOWED_TABLE_FUNCTIONS:
        raise UsageError(
            f"table function not allowed: {', '.join(sorted(forbidden))} "
            f"(use the tables, or {', '.join(sorted(_ALLOWED_TABLE_FUNCTIONS))})"
        )


def _syntax_tree(query: str, database: duckdb.DuckDBPyConnection | None = None) -> dict[str, Any]:
    with duckdb.connect(":memory:") if database is None else nullcontext(database) as parser:
        serialized = parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
    tree: dict[str, Any] = msgspec.json.decode(serialized[0] if serialized else "{}")
    return tree


def _table_functions(tree: Any) -> Iterator[str]:
    return (str(node["function"]["function_name"]).lower() for node in _nodes(tree, "type", "TABLE_FUNCTION"))


def _read_tables(tree: Any) -> set[str]:
    """Return the names of tables that a query reads, without files, DuckDB's own tables and names that it defines."""
    names = {str(node["table_name"]).lower() for node in _nodes(tree, "type", "BASE_TABLE") if not node["schema_name"]}
    defined = {str(entry["key"]).lower() for node in _nodes(tree, "cte_map") for entry in node["cte_map"]["map"]}
    return {name for name in names - defined if name.isidentifier() and not name.startswith(_DUCKDB_TABLES)}


def _nodes(tree: Any, key: str, value: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a syntax tree that have a key, and this value if one is given."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if key in node and value in (None, node[key]):
                yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


@contextmanager
def open_sandbox(
    sources: TableSources, limits: SqlLimits, scratch: Path, output: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with the tables as views. It can open only their files and an output file."""
    database = duckdb.connect(":memory:")
    allowed = [*_quoted_files(sources), *([quoted(output)] if output else [])]
    try:
        for name, value in (
            ("memory_limit", f"'{limits.memory}B'"), ("temp_directory", quoted(scratch)),
            ("max_temp_directory_size", f"'{_MAX_SPILLED}'"), ("python_enable_replacements", "false"),
            ("autoinstall_known_extensions", "false"), ("autoload_known_extensions", "false"),
            ("allowed_paths", f"[{', '.join(allowed)}]"),
        ):  # fmt: skip
            database.execute(f"SET {name} = {value}")
        for table, parts in sources.items():
            selects = [f"SELECT {columns}* FROM {source}" for columns, source in parts]
            database.execute(f"CREATE VIEW {table} AS {' UNION ALL BY NAME '.join(selects)}")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        with _interrupt_after(database, limits.timeout_s):
            yield database
    finally:
        database.close()


def execute(database: duckdb.DuckDBPyConnection, query: str) -> duckdb.DuckDBPyConnection:
    """Run a checked query.

    Times with a time zone are returned as text, because their Python values need another package.
    """
    cursor = database.execute(query)
    zoned = [_quote_name(name) for name, kind, *_ in cursor.description or [] if kind == "TIMESTAMP WITH TIME ZONE"]
    if not zoned:
        return cursor
    replaced = ", ".join(f"{name}::VARCHAR AS {name}" for name in zoned)
    return database.execute(f"SELECT * REPLACE ({replaced}) FROM (\n{query.strip().rstrip(';')}\n)")


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def duckdb_message(error: duckdb.Error) -> str:
    """Return the message of a DuckDB error in one line, without the query that it quotes."""
    return str(error).split("\n\n")[0].split("\nLINE")[0].replace("\n", " ").strip()[:_MAX_ERROR_CHARS]


def _quoted_files(sources: TableSources) -> list[str]:
    """Return the file names in the SQL sources, as quoted there."""
    texts = (
        text for parts in sources.values() for _, source in parts for text in re.findall(r"'(?:[^']|'')*'", source)
    )
    return [text for text in texts if text.endswith(".parquet'")]


@contextmanager
def _interrupt_after(database: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, database.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
