"""`rayhistory compare`: differences between sessions."""

import argparse
import asyncio
import sys
from collections.abc import Iterator

import msgspec

from rayhistory.api.async_history import AsyncHistory
from rayhistory.cli import output
from rayhistory.cli.client import open_http
from rayhistory.cli.session_args import add_server_argument, server_url
from rayhistory.cli.text_table import align
from rayhistory.errors import UsageError
from rayhistory.runs.comparison import MAX_SESSIONS, ComparedFigures, SessionComparison
from rayhistory.settings import Settings
from rayhistory.web.format import format_duration, format_hours, format_short_ms, plural

_SESSIONS = "SESSION SESSION…"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sessions", nargs="*", metavar="SESSION",
        help=f"2 to {MAX_SESSIONS} sessions: names, or namespace/cluster; the first is the baseline",
    )  # fmt: skip
    parser.usage = f"{parser.prog} [options] {_SESSIONS}"
    add_server_argument(parser)
    parser.add_argument("--all", action="store_true", help="also print values that are equal")
    parser.add_argument("--json", action="store_true", help="print JSON, as the API returns it")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if not 2 <= len(arguments.sessions) <= MAX_SESSIONS:
        given = plural(len(arguments.sessions), "session")
        raise UsageError(f"{given} given, use 2 to {MAX_SESSIONS}: rayhistory compare {_SESSIONS}")
    found = asyncio.run(_compare(arguments, settings))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    else:
        print("\n".join(describe(found, everything=arguments.all)))
    return 0


async def _compare(arguments: argparse.Namespace, settings: Settings) -> SessionComparison:
    async with open_http(server_url(arguments), settings) as http:
        history = AsyncHistory(http)
        sessions = [await history.session(name) for name in arguments.sessions]
        return msgspec.convert(await history.compare(*sessions), SessionComparison)


def describe(found: SessionComparison, *, everything: bool = False) -> Iterator[str]:
    """Yield the lines of a comparison for a terminal; without `everything`, only differences."""
    yield from _table("", [[each.session.split("/")[1] for each in found.sessions]], [
        ("status", [each.status or "-" for each in found.sessions]),
        ("verdict", [each.verdict.headline if each.verdict else "-" for each in found.sessions]),
        ("duration", [_duration(each.duration_ms) for each in found.sessions]),
        ("tasks", [f"{each.tasks} ({each.failed_tasks} failed)" for each in found.sessions]),
        ("CPU-hours", [format_hours(each.cpu_hours) for each in found.sessions]),
        ("GPU-hours", [format_hours(each.gpu_hours) for each in found.sessions]),
    ])  # fmt: skip
    environment = [row for row in found.environment if everything or row.differs]
    yield from _table("Environment", [], [(row.name, [value or "-" for value in row.values]) for row in environment])
    functions = [row for row in found.functions if everything or row.differs]
    yield from _table("Functions (median)", [], [(row.name, list(map(_figures, row.sessions))) for row in functions])
    failures = [row for row in found.fingerprints if everything or row.new or row.gone]
    yield from _table("Failures", [], [
        (row.headline or row.code, ["yes" if had else "-" for had in row.sessions]) for row in failures
    ])  # fmt: skip


def _table(title: str, heads: list[list[str]], rows: list[tuple[str, list[str]]]) -> Iterator[str]:
    if title:
        yield ""
        yield title if rows else f"{title}: no differences"
    if rows:
        lines = [["", *head] for head in heads] + [[name, *values] for name, values in rows]
        yield align([[output.printable(_short(cell)) for cell in line] for line in lines]).rstrip("\n")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _duration(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else format_duration(milliseconds)


def _figures(each: ComparedFigures) -> str:
    if not each.count:
        return "-"
    median = "-" if each.p50_ms is None else format_short_ms(each.p50_ms)
    change = f" ({each.ratio:.2f}x)" if each.beyond_spread and each.ratio else ""
    failed = f", {each.failed} failed" if each.failed else ""
    return f"{median}{change} x {each.count}{failed}"
