"""`rayhistory mcp`: the Model Context Protocol over standard input and output, for coding agents."""

import argparse
import asyncio
import os

from rayhistory.api.async_history import AsyncHistory
from rayhistory.library import open_server, open_store_application
from rayhistory.mcp import stdio
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help=f"history server (default: read the store) [{SERVER_VARIABLE}]")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    has_store_flags = any(key.startswith("setting_") for key in vars(arguments))
    server = arguments.server or ("" if has_store_flags else os.environ.get(SERVER_VARIABLE, ""))
    asyncio.run(_serve(server, settings))
    return 0


async def _serve(server: str, settings: Settings) -> None:
    source = open_server(server, settings.ray_auth_token) if server else open_store_application(settings)
    async with source as http:
        await stdio.serve(AsyncHistory(http))
