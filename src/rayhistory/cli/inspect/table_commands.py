"""`rayhistory tasks`, `actors`, `jobs` and so on: the rows of one table, filtered, sorted and cut."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from rayhistory.cli import output
from rayhistory.cli.asking import Asking, asking
from rayhistory.cli.schema import schema
from rayhistory.errors import UsageError
from rayhistory.index.ask import DEFAULT_LIMIT, LARGEST_LIMIT
from rayhistory.server.openapi import Rows
from rayhistory.settings import Settings

TABLES = {
    "tasks": "task_id,attempt_number,name,state,start_time_ms,end_time_ms,error_type",
    "actors": "actor_id,class_name,name,state,job_id,pid,num_restarts",
    "jobs": "submission_id,job_id,status,start_time,end_time,entrypoint",
    "nodes": "node_id,node_ip,is_head,state,start_time_ms,end_time_ms",
    "workers": "worker_id,worker_type,pid,is_alive,exit_type,start_time_ms,end_time_ms",
    "placement_groups": "placement_group_id,name,state,is_detached,creator_job_id",
}
"""The tables that have a command, and the columns that people see when they name none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where", action="append", default=[], metavar="CONDITION",
        help="as state=FAILED, name~train, start_time_ms>=1700000000000; may be repeated. "
        "Operators: = != < <= > >= ~ (contains) ^= (begins with)",
    )  # fmt: skip
    parser.add_argument(
        "--sort", default="", metavar="COLUMNS", help="as --sort=-start_time_ms,name: a minus is descending"
    )
    parser.add_argument("--columns", default="", metavar="COLUMNS", help="which, in which order; all in docs/tables.md")
    parser.add_argument(
        "--limit", type=int, metavar="N",
        help=f"how many rows; 0 is all (default: {DEFAULT_LIMIT} in a table, all as JSON, CSV and Parquet)",
    )  # fmt: skip
    output.add_arguments(parser)


def run(table: str, arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.limit is not None and arguments.limit < 0:
        raise UsageError(f"--limit {arguments.limit}: use 0 or more")
    return asyncio.run(_run(table, arguments, settings))


async def _run(table: str, arguments: argparse.Namespace, settings: Settings) -> int:
    for_people = not (arguments.json or arguments.csv or arguments.parquet)
    columns = arguments.columns or (TABLES[table] if for_people else "")
    cut = for_people and arguments.limit is None
    question = {"columns": columns, "where": arguments.where, "sort": arguments.sort, "count": int(cut)}
    async with asking(arguments, settings) as session:
        pages = _pages(session, f"api/history/rows/{table}", question, DEFAULT_LIMIT if cut else arguments.limit or 0)
        first = await anext(pages)
        asked = list(dict.fromkeys(name.strip() for name in columns.split(",") if name.strip()))
        types = schema()[table]
        with output.writer(arguments, list(first.rows[0]) if first.rows else asked or list(types), types) as add:
            add(row.values() for row in first.rows)
            async for page in pages:
                add(row.values() for row in page.rows)
    more = first.total - len(first.rows) if isinstance(first.total, int) else 0
    if more:
        sys.stderr.write(f"{more:,} more rows are not shown: see --limit; --json, --csv and --parquet give all.\n")
    return 0


async def _pages(session: Asking, uri: str, question: dict[str, Any], limit: int) -> AsyncIterator[Rows]:
    """At least one, and as many as there are up to the limit."""
    left, cursor = limit, ""
    while True:
        size = min(left, LARGEST_LIMIT) if limit else LARGEST_LIMIT
        page = await session.json(uri, Rows, {**question, "limit": size, "cursor": cursor})
        yield page
        left, cursor = left - len(page.rows), page.next or ""
        if not cursor or (limit and left <= 0):
            return
