"""`rayhistory open`: a session's pages in a browser."""

import argparse
import asyncio
import webbrowser

from rayhistory.cli.client import open_client
from rayhistory.cli.session_args import add_session_arguments, server_and_session
from rayhistory.ray_address import LOCAL_SERVER
from rayhistory.server.history_api.api_types import MetricNames
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    parser.add_argument("--print", action="store_true", help="only print the URL")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Open the session on the given server, or on the default port of this machine."""
    server, _ = server_and_session(arguments)
    url = (server or LOCAL_SERVER) + asyncio.run(_session_path(arguments, settings))
    print(url)
    if not arguments.print:
        webbrowser.open(url)
    return 0


async def _session_path(arguments: argparse.Namespace, settings: Settings) -> str:
    """Return the path of a session that exists.

    An empty query for metrics checks this without indexing the session.
    """
    async with open_client(arguments, settings) as client:
        await client.json("api/history/metrics", MetricNames, {"from": 0, "to": 0})
        return client.path
