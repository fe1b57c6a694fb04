"""`rayhistory sessions`: what is in the store."""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.table import Table

from rayhistory.layout import Layout
from rayhistory.server.catalogue import Catalogue
from rayhistory.server.home import Home
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from rayhistory.web import SessionRow


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    rows = asyncio.run(_rows(settings))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    elif rows:
        console = Console()
        console.print(_table(rows), soft_wrap=True, crop=False, width=None if console.is_terminal else 200)
    else:
        print("The store holds no session yet. Record one with: rayhistory run -- python my_job.py")
    return 0


async def _rows(settings: Settings) -> list[SessionRow]:
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    catalogue = Catalogue(store, layout, settings.vanished_after)
    home = Home(catalogue, store, layout)
    try:
        return [await home.row(entry) for entry in await catalogue.entries()]
    finally:
        await store.close()


def _table(rows: list[SessionRow]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("STATE", "CLUSTER", "SESSION", "STARTED (UTC)", "DURATION", "JOBS", "TASKS", "RAY"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: SessionRow) -> list[str]:
    started = (
        datetime.fromtimestamp(row.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if row.started_ms else "–"
    )
    duration = row.duration_ms(int(time.time() * 1000))
    jobs, tasks = "–", "–"
    if row.counts:
        jobs = ", ".join(f"{number} {status.lower()}" for status, number in sorted(row.counts.jobs.items())) or "0"
        failed = f" ({row.counts.failed_tasks} failed)" if row.counts.failed_tasks else ""
        tasks = f"{row.counts.tasks}{failed}"
    return [
        row.state, f"{row.namespace}/{row.cluster}", row.session, started,
        f"{duration / 1000:.0f} s" if duration is not None else "–", jobs, tasks, row.ray_version or "–",
    ]  # fmt: skip
