"""`rayhistory logs`: log files of a session, by task, actor, job, process or name."""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator

from rayhistory.api.http_client import HistoryClient, Params, RayResponse
from rayhistory.cli.arguments import value_type
from rayhistory.cli.client import open_client
from rayhistory.cli.inspect import grep
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.errors import UsageError
from rayhistory.settings import Settings

_HEAD_NODE = "the head node"
"""Ray's API has no name for the head node; an address that no node has stands for it."""
_MAX_LINE_BYTES = 1 << 20
_SELECTORS = ("task", "actor", "job", "pid", "file")
_REQUIRED_SELECTORS = {
    "node": ("pid", "file", "list"),
    "attempt": ("task",),
    "incarnation": ("actor",),
    "err": ("task", "actor", "pid"),
    "lines": _SELECTORS,
    "follow": _SELECTORS,
    "grep": (*_SELECTORS, "list"),
}
"""Flags that need one of other flags."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    selector = parser.add_mutually_exclusive_group()
    selector.add_argument("--task", metavar="ID", help="show the output of this task")
    selector.add_argument("--actor", metavar="ID", help="show the output of this actor")
    selector.add_argument("--job", metavar="ID", help="show the output of this submitted job's entrypoint")
    selector.add_argument("--pid", type=int, metavar="PID", help="show the output of this worker process")
    selector.add_argument("--file", metavar="NAME", help="show this file")
    selector.add_argument("--list", metavar="GLOB", nargs="?", const="**", help="list file names (default)")
    parser.add_argument("--node", metavar="ID", help="with --pid, --file or --list: node (default: the head node)")
    parser.add_argument("--attempt", type=int, metavar="N", help="with --task: attempt (default: the latest)")
    parser.add_argument(
        "--incarnation", type=int, metavar="N", help="with --actor: incarnation, from 0 (default: the latest)"
    )
    parser.add_argument(
        "--err", action="store_true", help="with --task, --actor or --pid: show stderr instead of stdout"
    )
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="show only the last N lines")
    parser.add_argument("--follow", action="store_true", help="continue while the session runs")
    parser.add_argument(
        "--grep",
        type=value_type(_parse_regex),
        metavar="REGEX",
        help="show only matching lines; exit with 1 if none; without a file, search all files as rayhistory grep does",
    )


def _parse_regex(text: str) -> "re.Pattern[bytes]":
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise ValueError(f"invalid regular expression ({error})") from None


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.lines is not None and arguments.lines < 1:
        raise UsageError(f"--lines={arguments.lines}: use a number above 0")
    selector = next((name for name in _SELECTORS if getattr(arguments, name) is not None), "list")
    if arguments.grep and selector == "list":
        return _grep_all_files(arguments, settings)
    for flag, required in _REQUIRED_SELECTORS.items():
        value = getattr(arguments, flag)
        is_given = value is not None and value is not False
        if is_given and selector not in required:
            raise UsageError(f"--{flag} requires {_alternatives(required)}")
    return asyncio.run(_run(selector, arguments, settings))


def _grep_all_files(arguments: argparse.Namespace, settings: Settings) -> int:
    """Search all files, or those that --list and --node select."""
    parser = argparse.ArgumentParser()
    grep.add_arguments(parser)
    searched = parser.parse_args([arguments.grep.pattern.decode()])
    for name in ("session", "server", "node"):
        setattr(searched, name, getattr(arguments, name))
    searched.glob = arguments.list
    vars(searched).update({name: value for name, value in vars(arguments).items() if name.startswith("setting_")})
    return grep.run(searched, settings)


def _alternatives(flags: tuple[str, ...]) -> str:
    *others, last = (f"--{flag}" for flag in flags)
    return f"{', '.join(others)} or {last}" if others else last


async def _run(selector: str, arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_client(arguments, settings) as client:
        if selector == "list":
            await _list(client, arguments)
            return 0
        kind = "stream" if arguments.follow else "file"
        chunks = client.stream(f"api/v0/logs/{kind}", _params(arguments), endless=arguments.follow)
        is_empty = True
        async for chunk in _matching_lines(chunks, arguments.grep) if arguments.grep else chunks:
            is_empty = False
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    return 1 if is_empty and arguments.grep else 0


async def _list(client: HistoryClient, arguments: argparse.Namespace) -> None:
    response = await client.json("api/v0/logs", RayResponse, _node(arguments) | {"glob": arguments.list or "**"})
    for name in sorted(name for names in response.data["result"].values() for name in names):
        if not name.endswith("/"):
            print("".join(char if char.isprintable() else "?" for char in name))


def _node(arguments: argparse.Namespace) -> Params:
    return {"node_id": arguments.node} if arguments.node else {"node_ip": _HEAD_NODE}


def _params(arguments: argparse.Namespace) -> Params:
    """Return the parameters of Ray's log API."""
    params = {
        "task_id": arguments.task,
        "actor_id": arguments.actor,
        "submission_id": arguments.job,
        "pid": arguments.pid,
        "filename": arguments.file,
        "attempt_number": arguments.attempt,
        "incarnation": arguments.incarnation,
        "suffix": "err" if arguments.err else "out",
        "lines": arguments.lines or -1,
    }
    node = {} if arguments.task or arguments.actor else _node(arguments)
    return node | {name: value for name, value in params.items() if value is not None}


async def _matching_lines(chunks: AsyncIterator[bytes], pattern: "re.Pattern[bytes]") -> AsyncIterator[bytes]:
    """Yield whole lines that match. A longer line than fits into memory is split."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        if matching := [line for line in lines if pattern.search(line)]:
            yield b"\n".join(matching) + b"\n"
    if rest and pattern.search(rest):
        yield rest + b"\n"
