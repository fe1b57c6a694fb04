"""`rayhistory open`: open a session's pages in a browser."""

import argparse
import asyncio
import sys
import webbrowser

from rayhistory.cli import serve
from rayhistory.cli.arguments import setting_flags
from rayhistory.cli.client import open_client
from rayhistory.cli.session_args import add_session_arguments, server_and_session
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.running_servers import registered_servers
from rayhistory.server.history_api.api_types import MetricNames
from rayhistory.server_probe import responds
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    parser.add_argument("--print", action="store_true", help="only print the URL")
    parser.add_argument("--serve", action="store_true", help="start a server if none has the session")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Open the session on the given server, else on a server of this machine (on the given port, else on any port)."""
    server, _ = server_and_session(arguments)
    if arguments.serve and server:
        raise UsageError(
            f"--serve starts a server on this machine, but the session is on {server}: omit --serve or --server"
        )
    path = asyncio.run(_session_path(arguments, settings))
    if server:
        return _open(server + path, arguments)
    local = f"http://{settings.host or serve.DEFAULT_HOST}:{settings.port}"
    others = [] if hasattr(arguments, "setting_port") else registered_servers(settings.cache_dir)
    for url in dict.fromkeys([local, *others]):
        if asyncio.run(responds(url, settings, path)):
            if arguments.serve:
                print(f"rayhistory: a server at {url} already serves this session, starting no other", file=sys.stderr)
            return _open(url + path, arguments)
    if arguments.serve:
        return serve.serve(settings, lambda url: _show(url + path, arguments))
    raise RayHistoryError(asyncio.run(_why_not(local, arguments, settings)))


def _open(url: str, arguments: argparse.Namespace) -> int:
    _show(url, arguments)
    return 0


def _show(url: str, arguments: argparse.Namespace) -> None:
    print(url, flush=True)
    if not arguments.print:
        webbrowser.open(url)


async def _why_not(server: str, arguments: argparse.Namespace, settings: Settings) -> str:
    session = [arguments.session] if arguments.session else []
    command = " ".join(["rayhistory open --serve", *setting_flags(arguments), *session])
    if await responds(server, settings):
        return f"the history server at {server} does not have this session: use another --port with {command}"
    return f"no history server responds at {server}: start one with {command}"


async def _session_path(arguments: argparse.Namespace, settings: Settings) -> str:
    """Return the path of a session that exists.

    An empty query for metrics checks this without indexing the session.
    """
    async with open_client(arguments, settings) as client:
        await client.json("api/history/metrics", MetricNames, {"from": 0, "to": 0})
        return client.path
