"""`rayhistory sessions`: list the sessions in a store or on a server."""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime

import msgspec

from rayhistory.cli.arguments import add_json_argument, setting_flags
from rayhistory.cli.client import read_sessions
from rayhistory.cli.output import printable
from rayhistory.cli.session_args import add_server_argument, server_url
from rayhistory.cli.text_table import align
from rayhistory.errors import UsageError
from rayhistory.server.history_api.api_types import SessionList
from rayhistory.sessions.catalog import RUNNING
from rayhistory.settings import Settings
from rayhistory.web import SESSION_STATES, SORTS, SessionRow
from rayhistory.web.format import format_duration, plural

_HEADINGS = ("STATE", "CLUSTER", "SESSION", "STARTED (UTC)", "DURATION", "JOBS", "TASKS", "RAY")
_FILTERS = ("q", "namespace", "cluster", "owner", "state", "since", "sort")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "q", nargs="?", metavar="WORDS",
        help="words in the names of cluster, session or owner, in a job's id, entrypoint or metadata, or in the reason "
        "why the session failed",
    )  # fmt: skip
    add_server_argument(parser)
    parser.add_argument("--namespace", metavar="NAME", help="only this namespace")
    parser.add_argument("--cluster", metavar="NAME", help="only this cluster")
    parser.add_argument(
        "--owner", metavar="OWNER", help="rayjob, rayservice, none, or one owner, such as rayjob/nightly"
    )
    parser.add_argument("--state", choices=SESSION_STATES, help="only sessions in this state")
    parser.add_argument(
        "--failed", action="store_true", help="only sessions that failed: a job failed, or the cluster vanished"
    )
    parser.add_argument("--since", metavar="AGE", help="only sessions that started within this time, such as 24h or 7d")
    parser.add_argument(
        "--sort", choices=SORTS, metavar="COLUMN",
        help="started, cluster, namespace or failed; --sort=-started reverses the order (default: newest first)",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="maximum number of sessions (default: all)")
    add_json_argument(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit={arguments.limit}: use a number above 0")
    filters = {name: value for name in _FILTERS if (value := getattr(arguments, name))}
    filters |= {"failed": "1"} if arguments.failed else {}
    found = asyncio.run(read_sessions(server_url(arguments), settings, filters, arguments.limit))
    rows = found.sessions
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    elif rows:
        print(align([_HEADINGS, *map(_cells, rows)]))
    else:
        sys.stderr.write("No session matches.\n") if filters else print(_NO_SESSIONS)
    if found.total > len(rows):
        sys.stderr.write(f"{found.total - len(rows):,} more sessions not shown\n")
    sys.stderr.write(_how_to_index(found, arguments))
    return 0


def _how_to_index(found: SessionList, arguments: argparse.Namespace) -> str:
    """Return a hint about sessions without an index: listed ones, and those that a filter left out for lack of one."""
    shown = [row for row in found.sessions if row.counts is None and not row.unreadable and row.state != RUNNING]
    unindexed = found.unindexed + len(shown)
    if not unindexed:
        return ""
    command = " ".join(["rayhistory index --missing", *setting_flags(arguments)])
    hint = "The server indexes a session when it is opened." if server_url(arguments) else f"To index, run: {command}"
    return f"{plural(unindexed, 'session')} not indexed, so jobs and failures are unknown. {hint}\n"


_NO_SESSIONS = "The store has no sessions yet. Record one with: rayhistory run -- python my_job.py"


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
        format_duration(duration) if duration is not None else "?",
        jobs,
        tasks,
        printable(row.ray_version or "?"),
    )


def _format_time(ms: int | None) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "?"
