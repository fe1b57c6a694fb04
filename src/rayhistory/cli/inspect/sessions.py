"""`rayhistory sessions`: what is in the store."""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime

import msgspec

from rayhistory.cli.output import table
from rayhistory.index.overlay import index_store
from rayhistory.layout import Layout
from rayhistory.server.catalogue import Catalogue
from rayhistory.server.home import Home
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from rayhistory.web import SessionRow

_HEADINGS = ("STATE", "CLUSTER", "SESSION", "STARTED (UTC)", "DURATION", "JOBS", "TASKS", "RAY")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    rows = asyncio.run(_rows(settings))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    elif rows:
        print(table([_HEADINGS, *map(_cells, rows)]))
    else:
        print("The store holds no session yet. Record one with: rayhistory run -- python my_job.py")
    return 0


async def _rows(settings: Settings) -> list[SessionRow]:
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    catalogue = Catalogue(store, layout, settings.vanished_after)
    home = Home(catalogue, index_store(store, settings), layout)
    try:
        return [await home.row(entry) for entry in await catalogue.entries()]
    finally:
        await store.close()


def _cells(row: SessionRow) -> tuple[str, ...]:
    duration = row.duration_ms(int(time.time() * 1000))
    jobs = tasks = "cannot be read now" if row.unreadable else "not indexed yet"
    if row.counts:
        jobs = ", ".join(f"{number} {status.lower()}" for status, number in sorted(row.counts.jobs.items())) or "0"
        failed = f" ({row.counts.failed_tasks} failed)" if row.counts.failed_tasks else ""
        tasks = f"{row.counts.tasks}{failed}"
    return (
        row.state,
        f"{row.namespace}/{row.cluster}",
        row.session,
        _time(row.started_ms),
        f"{duration / 1000:.0f} s" if duration is not None else "?",
        jobs,
        tasks,
        row.ray_version or "?",
    )


def _time(ms: int | None) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "?"
