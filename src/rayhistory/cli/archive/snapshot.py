"""`rayhistory snapshot`: make a session from the dashboard of a running cluster."""

import argparse
import asyncio
import dataclasses
from urllib.parse import urlsplit

from rayhistory.archive.registration import require_writable
from rayhistory.archive.snapshot import CaptureResult, DashboardCapture
from rayhistory.cli.arguments import add_cluster_arguments
from rayhistory.cli.progress import progress_bar
from rayhistory.cli.session_store import open_session_store
from rayhistory.errors import UsageError
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings, parse_size
from rayhistory.sizes import format_size

_MAX_LISTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dashboard", metavar="URL", help="URL of the dashboard, such as http://127.0.0.1:8265")
    parser.add_argument(
        "--log-limit", default="64Mi", metavar="SIZE",
        help="maximum number of bytes to store of each log file; 0 stores no logs (default: 64Mi)",
    )  # fmt: skip
    add_cluster_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    try:
        limit = parse_size(arguments.log_limit)
    except ValueError as error:
        raise UsageError(f"--log-limit={arguments.log_limit}: {error}") from None
    settings = dataclasses.replace(settings, ray_dashboard_address=_check_url(arguments.dashboard))
    ref, result = asyncio.run(_capture(settings, arguments.namespace, arguments.name, limit))
    print(
        f"{ref.path}  stored: {result.responses} dashboard responses, {result.tasks:,} tasks, "
        f"{result.files:,} log files, {format_size(result.size)}"
    )
    for name in result.truncated[:_MAX_LISTED]:
        print(f"log truncated to {arguments.log_limit}: {name}")
    for failure in result.errors[:_MAX_LISTED]:
        print(f"request failed: {failure}")
    return 0


def _check_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{text}: use the URL of a dashboard, such as http://127.0.0.1:8265")
    return text.rstrip("/")


async def _capture(settings: Settings, namespace: str, name: str, limit: int) -> tuple[SessionRef, CaptureResult]:
    async with open_session_store(settings, writable=True) as (store, layout, _):
        capture = DashboardCapture(settings, store, layout, log_limit=limit)
        try:
            ref = SessionRef.checked(namespace, name, await capture.begin())
            await require_writable(store, layout, ref, settings.vanished_after)
            with progress_bar(ref.path) as progress:
                return ref, await capture.run(ref, progress)
        finally:
            await capture.close()
