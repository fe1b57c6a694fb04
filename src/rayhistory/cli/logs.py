"""`rayhistory logs`: which files there are, and what is in them, by task, actor, job, process or name."""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator

from rayhistory.cli.asking import Asking, Params, RayAnswer, asking
from rayhistory.cli.retention import read_as
from rayhistory.errors import UsageError
from rayhistory.settings import Settings

_HEAD = "the head node"
_LONGEST = 1 << 20
_WRITTEN = ("task", "actor", "job", "pid", "file")
_GOES_WITH = {
    "node": ("pid", "file", "list"),
    "attempt": ("task",),
    "incarnation": ("actor",),
    "err": ("task", "actor", "pid"),
    "lines": _WRITTEN,
    "follow": _WRITTEN,
    "grep": _WRITTEN,
}
"""What means something beside what."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--task", metavar="ID", help="what this task wrote")
    what.add_argument("--actor", metavar="ID", help="what this actor wrote")
    what.add_argument("--job", metavar="ID", help="what the entrypoint of this submitted job wrote")
    what.add_argument("--pid", type=int, metavar="PID", help="what this worker process wrote")
    what.add_argument("--file", metavar="NAME", help="a file by its name")
    what.add_argument("--list", metavar="GLOB", nargs="?", const="**", help="the names of files (the default)")
    parser.add_argument("--node", metavar="ID", help="for --pid, --file and --list (default: the head node)")
    parser.add_argument("--attempt", type=int, metavar="N", help="of a task (default: the latest)")
    parser.add_argument("--incarnation", type=int, metavar="N", help="of an actor, from 0 (default: the latest)")
    parser.add_argument("--err", action="store_true", help="stderr instead of stdout, of a task, actor or process")
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="the last N lines (default: all)")
    parser.add_argument("--follow", action="store_true", help="go on while the session runs")
    parser.add_argument("--grep", type=read_as(_pattern), metavar="REGEX", help="only lines that match")


def _pattern(text: str) -> "re.Pattern[bytes]":
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise ValueError(f"no regular expression ({error})") from None


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.lines is not None and arguments.lines < 1:
        raise UsageError(f"--lines {arguments.lines}: use a number above 0")
    what = next((name for name in _WRITTEN if getattr(arguments, name) is not None), "list")
    for flag, fitting in _GOES_WITH.items():
        given = getattr(arguments, flag)
        if given is not None and given is not False and what not in fitting:
            raise UsageError(f"--{flag} goes with {', '.join(f'--{name}' for name in fitting)}")
    return asyncio.run(_run(what, arguments, settings))


async def _run(what: str, arguments: argparse.Namespace, settings: Settings) -> int:
    async with asking(arguments, settings) as session:
        if what == "list":
            await _list(session, arguments)
            return 0
        kind = "stream" if arguments.follow else "file"
        blocks = session.stream(f"api/v0/logs/{kind}", _question(arguments), endless=arguments.follow)
        found = False
        async for block in _matching(blocks, arguments.grep) if arguments.grep else blocks:
            found = True
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    return 0 if found or not arguments.grep else 1


async def _list(session: Asking, arguments: argparse.Namespace) -> None:
    answer = await session.json("api/v0/logs", RayAnswer, _node(arguments) | {"glob": arguments.list or "**"})
    for name in sorted(name for names in answer.data["result"].values() for name in names):
        if not name.endswith("/"):
            print("".join(mark if mark.isprintable() else "?" for mark in name))


def _node(arguments: argparse.Namespace) -> Params:
    return {"node_id": arguments.node} if arguments.node else {"node_ip": _HEAD}


def _question(arguments: argparse.Namespace) -> Params:
    """As Ray's API has it; an address that no node had stands for the head node."""
    given = {
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
    where = {} if arguments.task or arguments.actor else _node(arguments)
    return where | {name: value for name, value in given.items() if value is not None}


async def _matching(blocks: AsyncIterator[bytes], pattern: "re.Pattern[bytes]") -> AsyncIterator[bytes]:
    """Whole lines that match; one without end is cut, so that it fits into memory."""
    rest = b""
    async for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        if found := [line for line in lines if pattern.search(line)]:
            yield b"\n".join(found) + b"\n"
    if rest and pattern.search(rest):
        yield rest + b"\n"
