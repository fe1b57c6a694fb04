"""`rayhistory metrics`: evaluate a PromQL query over the stored metrics of a session."""

import argparse
import asyncio
import difflib
import math
import re
import shutil

import msgspec

from rayhistory.api.http_client import HistoryClient
from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.inspect.terminal_plot import LETTERS, plot
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.cli.text_table import align
from rayhistory.errors import UsageError
from rayhistory.server.metrics_api.chart_types import DashboardTitles
from rayhistory.settings import Settings
from rayhistory.utc import parse_utc_ms

_STEPS = 200
_PLOT_HEIGHT = 13
_MAX_NAME = 100
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SUGGESTIONS = 3


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct):
    result: list[_Series]


class _QueryResponse(msgspec.Struct):
    data: _Matrix


class _Names(msgspec.Struct):
    data: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "query",
        metavar="PROMQL",
        nargs="?",
        help="query in PromQL, such as 'sum(ray_tasks) by (State)' (default: list the metrics)",
    )
    add_session_arguments(parser)
    parser.add_argument(
        "--from", dest="start", metavar="TIME", help="start: ms since 1970 or ISO 8601 (default: first sample)"
    )
    parser.add_argument(
        "--to", dest="end", metavar="TIME", help="end: ms since 1970 or ISO 8601 (default: last sample)"
    )
    parser.add_argument(
        "--step", type=float, metavar="SECONDS", help=f"seconds between two points (default: {_STEPS} points)"
    )
    output.add_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.step is not None and not 0 < arguments.step < 1e9:
        raise UsageError(f"--step={arguments.step:g}: use a number of seconds above 0")
    return asyncio.run(_run(arguments, settings))


async def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_client(arguments, settings) as client:
        start_ms, end_ms = await _times(arguments, client)
        if arguments.query is None:
            return _print_names(arguments, await _names(client))
        step_s = arguments.step or max(1, math.ceil((end_ms - start_ms) / 1000 / _STEPS))
        params = {"query": arguments.query, "start": start_ms / 1000, "end": end_ms / 1000, "step": step_s}
        response = await client.json("prometheus/api/v1/query_range", _QueryResponse, params)
        series = response.data.result
        missing = "" if series else missing_metric(arguments.query, await _names(client))
    if arguments.json or arguments.csv or arguments.parquet:
        with output.row_writer(
            arguments, ["series", "time_ms", "value"], {"time_ms": "BIGINT", "value": "DOUBLE"}
        ) as add:
            for each in series:
                add((series_text(each.metric), round(at * 1000), _number(value)) for at, value in each.values)
        return 0
    print("\n".join(_text(series, start_ms, end_ms, step_s)) + missing)
    return 0


async def _names(client: HistoryClient) -> list[str]:
    return (await client.json("prometheus/api/v1/label/__name__/values", _Names)).data


def _print_names(arguments: argparse.Namespace, names: list[str]) -> int:
    if arguments.json or arguments.csv or arguments.parquet:
        with output.row_writer(arguments, ["name"], {}) as add:
            add([name] for name in names)
    else:
        print("\n".join(map(output.printable, names)))
    return 0


def missing_metric(query: str, stored: list[str]) -> str:
    """Explain an empty result of a query that names no stored metric."""
    words = sorted(_NAME.findall(query), key=len)
    if not words or not set(words).isdisjoint(stored):
        return ""
    near = difflib.get_close_matches(words[-1], stored, _SUGGESTIONS)
    hint = f"did you mean {' or '.join(near)}?" if near else "'rayhistory metrics' without a query lists all metrics"
    return f": metric {words[-1]} is not stored; {hint}"


async def _times(arguments: argparse.Namespace, client: HistoryClient) -> tuple[int, int]:
    known = await client.json("api/history/charts", DashboardTitles)
    if not known.last_ms:
        raise UsageError(
            f"{client.path} has no stored metrics: collectors with --metrics-interval 0 or without log upload "
            "store none"
        )
    start = _parse_time(arguments.start, "--from") if arguments.start else known.first_ms
    end = _parse_time(arguments.end, "--to") if arguments.end else known.last_ms
    if end < start:
        raise UsageError("--to is before --from")
    return start, end


def _parse_time(text: str, flag: str) -> int:
    try:
        return parse_utc_ms(text)
    except ValueError:
        raise UsageError(f"{flag}={text}: use milliseconds since 1970, or ISO 8601 in UTC") from None


def series_text(metric: dict[str, str]) -> str:
    """Return a series as Prometheus writes it."""
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != "__name__")
    return f"{metric.get('__name__', '')}{{{inside}}}"


def _text(series: list[_Series], start_ms: int, end_ms: int, step_s: float) -> list[str]:
    steps = int((end_ms - start_ms) / 1000 // step_s) + 1
    times = [start_ms + round(number * step_s * 1000) for number in range(steps)]
    columns = [_column(each, start_ms, step_s, steps) for each in series]
    size = shutil.get_terminal_size((100, 30))
    names = [output.printable(series_text(each.metric))[:_MAX_NAME] for each in series]
    lines = plot(times, columns, size.columns, _PLOT_HEIGHT)
    rows = [["", "SERIES", "MIN", "MAX", "LAST"]]
    for position, (name, values) in enumerate(zip(names, columns, strict=True)):
        numbers = [value for value in values if value is not None]
        letter = LETTERS[position] if position < len(LETTERS) else "-"
        rows.append([letter, name, *(f"{value:.6g}" for value in (min(numbers), max(numbers), numbers[-1]))])
    return [*lines, "", align(rows)] if series else lines


def _column(series: _Series, start_ms: int, step_s: float, steps: int) -> list[float | None]:
    column: list[float | None] = [None] * steps
    for at, value in series.values:
        position = round((at * 1000 - start_ms) / (step_s * 1000))
        if 0 <= position < steps:
            column[position] = _number(value)
    return column


def _number(text: str) -> float:
    return float(text.replace("Inf", "inf"))
