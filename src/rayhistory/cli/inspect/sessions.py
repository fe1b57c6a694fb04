"""`rayhistory sessions`: the sessions in the store."""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime

import msgspec

from rayhistory.cli.arguments import add_json_argument
from rayhistory.cli.output import align
from rayhistory.cli.session_store import open_session_store
from rayhistory.index.service.overlay import index_store
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.settings import Settings
from rayhistory.web import SessionRow

_HEADINGS = ("STATE", "CLUSTER", "SESSION", "STARTED (UTC)", "DURATION", "JOBS", "TASKS", "RAY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    rows = asyncio.run(_rows(settings))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    elif rows:
        print(align([_HEADINGS, *map(_cells, rows)]))
    else:
        print("The store has no sessions yet. Record one with: rayhistory run -- python my_job.py")
    return 0


async def _rows(settings: Settings) -> list[SessionRow]:
    async with open_session_store(settings) as opened:
        listing = SessionListing(opened.catalog, index_store(opened.store, settings), opened.layout)
        return [await listing.row(entry) for entry in await opened.catalog.entries()]


def _cells(row: SessionRow) -> tuple[str, ...]:
    duration = row.duration_ms(int(time.time() * 1000))
    jobs = tasks = "index unreadable" if row.unreadable else "not indexed"
    if row.counts:
        jobs = ", ".join(f"{number} {status.lower()}" for status, number in sorted(row.counts.jobs.items())) or "0"
        failed = f" ({row.counts.failed_tasks} failed)" if row.counts.failed_tasks else ""
        tasks = f"{row.counts.tasks}{failed}"
    return (
        row.state,
        f"{row.namespace}/{row.cluster}",
        row.session,
        _format_time(row.started_ms),
        f"{duration / 1000:.0f} s" if duration is not None else "?",
        jobs,
        tasks,
        row.ray_version or "?",
    )


def _format_time(ms: int | None) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "?"
