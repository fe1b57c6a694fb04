"""The commands that look at one session from a terminal: summary, timeline, gaps, and the link to its pages."""

import argparse
import asyncio
import sys
import webbrowser
from typing import Any

from rayhistory.cli import output
from rayhistory.cli.asking import RayAnswer, address_of, asking
from rayhistory.cli.schema import schema
from rayhistory.rayaddress import LOCAL_SERVER
from rayhistory.server.openapi import Gaps, MetricNames
from rayhistory.settings import Settings


def add_summary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--of", choices=("tasks", "actors"), default="tasks", help="what is counted (default: tasks)")
    output.add_arguments(parser)


def summary(arguments: argparse.Namespace, settings: Settings) -> int:
    """How many there are of each name, by state."""

    async def ask() -> dict[str, Any]:
        async with asking(arguments, settings) as session:
            answer = await session.json(f"api/v0/{arguments.of}/summarize", RayAnswer)
            found: dict[str, Any] = answer.data["result"]
            return found

    found = asyncio.run(ask())
    for warning in found["warnings"] or ():
        print(warning, file=sys.stderr)
    groups = found["result"]["node_id_to_summary"]["cluster"]["summary"]
    states = sorted({state for group in groups.values() for state in group["state_counts"]})
    about = ("name", "type") if arguments.of == "tasks" else ("class_name",)
    rows = [
        (name, *([group["type"]] if arguments.of == "tasks" else []),
         *(group["state_counts"].get(state, 0) for state in states))
        for name, group in groups.items()
    ]  # fmt: skip
    with output.writer(arguments, [*about, *states], dict.fromkeys(states, "BIGINT")) as add:
        add(rows)
    return 0


def add_timeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write it; - is the terminal")
    parser.add_argument("--job", metavar="ID", help="only the tasks of this job")


def timeline(arguments: argparse.Namespace, settings: Settings) -> int:
    """For chrome://tracing and Perfetto."""
    return asyncio.run(_timeline(arguments, settings))


async def _timeline(arguments: argparse.Namespace, settings: Settings) -> int:
    async with asking(arguments, settings) as session:
        blocks = session.stream("api/v0/tasks/timeline", {"job_id": arguments.job} if arguments.job else None)
        if arguments.output == "-":
            async for block in blocks:
                sys.stdout.buffer.write(block)
            return 0
        with output.whole_file(arguments.output) as place, place.open("wb") as file:
            async for block in blocks:
                file.write(block)
    print(f"{arguments.output}: open it at https://ui.perfetto.dev or chrome://tracing")
    return 0


def gaps(arguments: argparse.Namespace, settings: Settings) -> int:
    """What is missing from the session, and why."""

    async def ask() -> Gaps:
        async with asking(arguments, settings) as session:
            return await session.json("api/history/gaps", Gaps)

    found = asyncio.run(ask())
    names = ("kind", "detail", "count", "source")
    rows = [[getattr(gap, name) for name in names] for gap in found.gaps]
    if rows or arguments.json or arguments.csv or arguments.parquet:
        with output.writer(arguments, names, schema()["gaps"]) as add:
            add(rows)
    if found.complete:
        sys.stderr.write("Nothing is missing.\n")
    return 0


def add_open(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--print", action="store_true", help="only print the link")


def open_session(arguments: argparse.Namespace, settings: Settings) -> int:
    """The link to the session's pages, on the given server or on one on this machine.

    Whether there is such a session is told without any fold by its metrics, of which none are wanted.
    """

    async def ask() -> str:
        async with asking(arguments, settings) as session:
            await session.json("api/history/metrics", MetricNames, {"from": 0, "to": 0})
            return session.path

    server, _ = address_of(arguments)
    link = (server or LOCAL_SERVER) + asyncio.run(ask())
    print(link)
    if not arguments.print:
        webbrowser.open(link)
    return 0
