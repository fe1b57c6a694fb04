"""`rayhistory snapshot`: what the dashboard of a running cluster can tell now."""

import argparse
import asyncio
import dataclasses
from urllib.parse import urlsplit

from rayhistory.cli.progress import progress_bar
from rayhistory.errors import UsageError
from rayhistory.keeping.looking import Look, Looking
from rayhistory.keeping.records import refuse_if_busy
from rayhistory.keeping.retention import shown_size
from rayhistory.layout import Layout, SessionRef
from rayhistory.settings import Parser, Settings, parse_size
from rayhistory.storage import open_store


def add_arguments(parser: Parser) -> None:
    parser.add_argument("dashboard", metavar="URL", help="address of the dashboard, as http://127.0.0.1:8265")
    parser.add_argument(
        "--log-limit", default="64Mi", metavar="SIZE", help="how much of each log file is kept; 0: none (default: 64Mi)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    try:
        limit = parse_size(arguments.log_limit)
    except ValueError as error:
        raise UsageError(f"--log-limit={arguments.log_limit}: {error}") from None
    address = checked_address(arguments.dashboard)
    settings = dataclasses.replace(settings, ray_dashboard_address=address)
    ref, look = asyncio.run(_look(settings, arguments.namespace, arguments.name, limit))
    print(
        f"{ref.path}  kept: {look.answers} answers, {look.tasks:,} tasks, "
        f"{look.files:,} log files, {shown_size(look.size)}"
    )
    for name in look.cut[:10]:
        print(f"only the first {arguments.log_limit} were kept of log {name}")
    for told in look.unanswered[:10]:
        print(f"not told: {told}")
    return 0


def checked_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{text}: not the address of a dashboard, such as http://127.0.0.1:8265")
    return text.rstrip("/")


async def _look(settings: Settings, namespace: str, name: str, limit: int) -> tuple[SessionRef, Look]:
    store, layout = open_store(settings, writable=True), Layout(settings.storage_root_dir)
    looking = Looking(settings, store, layout, log_limit=limit)
    try:
        ref = SessionRef.checked(namespace, name, await looking.begin())
        await refuse_if_busy(store, layout, ref, settings.vanished_after)
        with progress_bar(ref.path) as progress:
            return ref, await looking.run(ref, progress)
    finally:
        await looking.close()
        await store.close()
