"""`rayhistory summary`: number of tasks or actors by name and state."""

import argparse
import asyncio
import sys
from typing import Any

from rayhistory.api.http_client import RayResponse
from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    parser.add_argument("--of", choices=("tasks", "actors"), default="tasks", help="what to count (default: tasks)")
    output.add_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    result = asyncio.run(_summarize(arguments, settings))
    for warning in result["warnings"] or ():
        print(warning, file=sys.stderr)
    groups = result["result"]["node_id_to_summary"]["cluster"]["summary"]
    states = sorted({state for group in groups.values() for state in group["state_counts"]})
    is_tasks = arguments.of == "tasks"
    names = ("name", "type") if is_tasks else ("class_name",)
    rows = [
        (name, *([group["type"]] if is_tasks else []), *(group["state_counts"].get(state, 0) for state in states))
        for name, group in groups.items()
    ]
    with output.row_writer(arguments, [*names, *states], dict.fromkeys(states, "BIGINT")) as add:
        add(rows)
    return 0


async def _summarize(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    async with open_client(arguments, settings) as client:
        response = await client.json(f"api/v0/{arguments.of}/summarize", RayResponse)
        result: dict[str, Any] = response.data["result"]
        return result
