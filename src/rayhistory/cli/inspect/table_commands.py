"""`rayhistory tasks`, `actors`, `jobs` and the other tables: filtered and sorted rows of one table."""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator

from rayhistory.api.http_client import HistoryClient, Params
from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.inspect.default_columns import DEFAULT_COLUMNS
from rayhistory.cli.inspect.known_values import unknown_values
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.cli.table_schema import schema
from rayhistory.errors import UsageError
from rayhistory.index.query.query_params import DEFAULT_LIMIT, MAX_LIMIT
from rayhistory.server.history_api.api_types import TableRows
from rayhistory.settings import Settings

_DEFAULT_FILTERS = {"tasks": {"type": "type!=DRIVER_TASK", "closed_by_history": "closed_by_history!=true"}}
"""Filters that hide drivers, and tasks whose end was inferred, unless --all is given or --where has the same column."""
_DEFAULT_SORT = {"tasks": "state,-start_time_ms", "jobs": "status,-start_time"}
"""On a terminal, list failed rows first, then the newest. FAILED is alphabetically the first state."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    parser.add_argument(
        "--where", action="append", default=[], metavar="CONDITION",
        help="filter, such as state=FAILED, name~train or start_time_ms>=2026-11-15T19:20Z; may be repeated. "
        "Operators: = != < <= > >= ~ (contains) ^= (starts with), combined with and, or and parentheses",
    )  # fmt: skip
    parser.add_argument(
        "--sort", default="", metavar="COLUMNS",
        help="columns to sort by, such as --sort=-start_time_ms,name; - is descending (default: failed tasks and jobs "
        "first, if printed as text)",
    )  # fmt: skip
    parser.add_argument(
        "--columns",
        default="",
        metavar="COLUMNS",
        help="columns to show, in this order; docs/reference/tables.md lists all",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N",
        help=f"maximum number of rows; 0 is no limit (default: {DEFAULT_LIMIT} as text, else no limit)",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="for tasks, also list drivers, and tasks whose end was inferred"
    )
    output.add_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.limit is not None and arguments.limit < 0:
        raise UsageError(f"--limit={arguments.limit}: use 0 or more")
    return asyncio.run(_run(arguments.table, arguments, settings))


async def _run(table: str, arguments: argparse.Namespace, settings: Settings) -> int:
    is_text = not (arguments.json or arguments.csv or arguments.parquet)
    columns = arguments.columns or (DEFAULT_COLUMNS[table] if is_text else "")
    has_default_limit = is_text and arguments.limit is None
    limit = DEFAULT_LIMIT if has_default_limit else arguments.limit or 0
    params = {
        "columns": columns, "where": _filters(table, arguments), "count": int(has_default_limit),
        "sort": arguments.sort or (_DEFAULT_SORT.get(table, "") if is_text else ""),
    }  # fmt: skip
    async with open_client(arguments, settings) as client:
        pages = _pages(client, f"api/history/rows/{table}", params, limit)
        first = await anext(pages)
        requested = list(dict.fromkeys(name.strip() for name in columns.split(",") if name.strip()))
        types = schema()[table]
        names = list(first.rows[0]) if first.rows else requested or list(types)
        with output.row_writer(arguments, names, types) as add:
            add(row.values() for row in first.rows)
            async for page in pages:
                add(row.values() for row in page.rows)
    if not first.rows:
        hints = [f"rayhistory: {output.printable(hint)}\n" for hint in unknown_values(table, arguments.where)]
        sys.stderr.write("".join(hints) or (f"{_no_rows(table, arguments.where)}\n" if is_text else ""))
    omitted = first.total - len(first.rows) if isinstance(first.total, int) else 0
    if omitted:
        sys.stderr.write(f"{omitted:,} more rows not shown: use --limit, or --json, --csv or --parquet for all rows\n")
    return 0


def _no_rows(table: str, where: list[str]) -> str:
    name = table.replace("_", " ")
    return f"No {name.removesuffix('s')} matches." if where else f"No {name} found."


def _filters(table: str, arguments: argparse.Namespace) -> list[str]:
    """Return the user's filters, and the default filters of columns that the user's filters do not name."""
    given: list[str] = arguments.where
    named = {re.split(r"\W", condition.strip(), maxsplit=1)[0] for condition in given}
    defaults = {} if arguments.all else _DEFAULT_FILTERS.get(table, {})
    return [*given, *(text for column, text in defaults.items() if column not in named)]


async def _pages(client: HistoryClient, uri: str, params: Params, limit: int) -> AsyncIterator[TableRows]:
    """Yield pages up to the limit. At least one page is returned."""
    remaining, cursor = limit, ""
    while True:
        size = min(remaining, MAX_LIMIT) if limit else MAX_LIMIT
        page = await client.json(uri, TableRows, {**params, "limit": size, "cursor": cursor})
        yield page
        remaining, cursor = remaining - len(page.rows), page.next or ""
        if not cursor or (limit and remaining <= 0):
            return
