"""`rayhistory mcp`: the Model Context Protocol over standard input and output, for coding agents."""

import argparse
import asyncio

from rayhistory.api.async_history import AsyncHistory
from rayhistory.cli.session_args import add_server_argument, server_url
from rayhistory.library import open_server, open_store_application
from rayhistory.mcp import stdio
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_argument(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    asyncio.run(_serve(server_url(arguments), settings))
    return 0


async def _serve(server: str | None, settings: Settings) -> None:
    source = open_server(server, settings.ray_auth_token) if server else open_store_application(settings)
    async with source as http:
        await stdio.serve(AsyncHistory(http))
