"""`rayhistory logs`: log files of a session, by task, actor, job, process or name."""

import argparse
import asyncio
import difflib
import re
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rayhistory.api.http_client import HistoryClient, Params, RayResponse
from rayhistory.cli.arguments import setting_flags, value_type
from rayhistory.cli.client import open_client
from rayhistory.cli.inspect import grep
from rayhistory.cli.inspect.find_entity import (
    NO_OUTPUT_OF_ITS_OWN,
    Row,
    count_incarnations,
    find_actor,
    find_job,
    find_log_node,
    find_task,
    task_attempt,
)
from rayhistory.cli.output import last_line, printable
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.errors import LogNotFound, UsageError
from rayhistory.logs.worker_markers import TaskOutput
from rayhistory.settings import Settings

_HEAD_NODE = "the head node"
"""A value of `node_ip` that no node has. The server then uses the head node, which Ray's API cannot name otherwise."""
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
"""For each flag that needs another flag: the flags of which at least one must be given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    selector = parser.add_mutually_exclusive_group()
    selector.add_argument(
        "--task", metavar="TASK", help="show the output of a task: its id, the beginning of its id, or its name"
    )
    selector.add_argument("--actor", metavar="ACTOR", help="show the output of an actor: its id, name or class")
    selector.add_argument("--job", metavar="ID", help="show the output of a submitted job: its submission id or job id")
    selector.add_argument("--pid", type=int, metavar="PID", help="show the output of this worker process")
    selector.add_argument("--file", metavar="GLOB", help="show this file, or all files that match, such as '*.err'")
    selector.add_argument("--list", metavar="GLOB", nargs="?", const="**", help="list file names (default)")
    parser.add_argument(
        "--node",
        metavar="NODE",
        help="with --pid, --file or --list: a node, by its id, the beginning of its id, its address or its name "
        "(default: the head node)",
    )
    parser.add_argument("--attempt", type=int, metavar="N", help="with --task: attempt (default: the latest)")
    parser.add_argument(
        "--incarnation", type=int, metavar="N", help="with --actor: incarnation, from 0 (default: the latest)"
    )
    parser.add_argument(
        "--err", action="store_true", help="with --task, --actor or --pid: show stderr instead of stdout"
    )
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="show only the last N lines")
    parser.add_argument("--follow", action="store_true", help="keep showing new lines while the session runs")
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
        await _resolve_names(client, arguments)
        if selector == "list":
            for name in await _file_names(client, arguments, arguments.list or "**"):
                print(_printable_name(name))
            return 0
        files = [arguments.file]
        if arguments.file and _is_glob(arguments.file):
            files = await _matching_files(client, arguments)
        requested = argparse.Namespace(**vars(arguments))
        is_empty = not await _copy_logs(client, arguments, files)
        if is_empty and not arguments.grep and selector != "file":
            sys.stderr.write(await _nothing_written(client, requested, selector))
    return 1 if is_empty and arguments.grep else 0


async def _copy_logs(client: HistoryClient, arguments: argparse.Namespace, files: list[str | None]) -> bool:
    """Write the logs. Each of several files has a heading; with --grep, only files with matches have one."""
    written = headed = False
    for file in files:
        heading = f"{chr(10) if headed else ''}==> {_printable_name(file)} <==\n" if file and len(files) > 1 else ""
        if heading and not arguments.grep:
            print(heading, end="", flush=True)
        try:
            is_written = await _copy_log_or_fallback(client, arguments, file, heading if arguments.grep else "")
        except LogNotFound:
            if file:
                raise await _no_such_file(client, arguments, file) from None
            raise
        headed |= bool(heading) and (is_written or not arguments.grep)
        written |= is_written
    return written


async def _nothing_written(client: HistoryClient, arguments: argparse.Namespace, selector: str) -> str:
    """Return a line about an empty log, with the error of the task if it has one."""
    noun = {"pid": "process", "job": "job"}.get(selector, selector)
    stream, other = ("stderr", "stdout") if arguments.err else ("stdout", "stderr")
    hint = "" if selector == "job" or arguments.err else f"; --err shows its {other}"
    task = await task_attempt(client, arguments.task, arguments.attempt, ("error_message",)) if arguments.task else None
    error = last_line(str(task["error_message"])) if task and task["error_message"] else ""
    reason = f". It failed: {printable(error)}" if error else ""
    where = "nothing" if selector == "job" else f"nothing to {stream}"
    return f"rayhistory: {noun} {getattr(arguments, selector)} wrote {where}{hint}{reason}\n"


async def _resolve_names(client: HistoryClient, arguments: argparse.Namespace) -> None:
    """Replace names, and beginnings of ids, by complete ids."""
    if arguments.task:
        arguments.task = await find_task(client, arguments.task)
    if arguments.actor:
        arguments.actor = await find_actor(client, arguments.actor)
    if arguments.job:
        arguments.job = await find_job(client, arguments.job, "submission_id")
    if arguments.node:
        arguments.node = await find_log_node(client, arguments.node)


async def _matching_files(client: HistoryClient, arguments: argparse.Namespace) -> list[str]:
    names = await _file_names(client, arguments, arguments.file)
    if not names:
        raise UsageError(f"no file matches {arguments.file!r}: list files with rayhistory logs --list")
    if arguments.follow and len(names) > 1:
        raise UsageError(f"{len(names)} files match {arguments.file!r}, but --follow needs exactly one")
    return names


async def _no_such_file(client: HistoryClient, arguments: argparse.Namespace, file: str) -> UsageError:
    """Return an error that names similar files of the node."""
    names = await _file_names(client, arguments, "**")
    near = [name for name in names if file in name] or difflib.get_close_matches(file, names, n=3)
    suggestion = f"Did you mean {' or '.join(map(_printable_name, near[:3]))}? " if near else ""
    where = "this node" if arguments.node else "the head node; --node selects another"
    return UsageError(f"no log file {file!r} on {where}. {suggestion}List files with rayhistory logs --list")


async def _copy_log_or_fallback(
    client: HistoryClient, arguments: argparse.Namespace, file: str | None, heading: str
) -> bool:
    """Write a log. For a task whose output is not known, write the log of its actor or of its worker."""
    try:
        return await (
            _copy_actor_log(client, arguments) if arguments.actor else _copy_log(client, arguments, file, heading)
        )
    except LogNotFound:
        columns = ("name", "actor_id", "node_id", "worker_id", "stdout_file", "stderr_file")
        task = await task_attempt(client, arguments.task, arguments.attempt, columns) if arguments.task else None
        if task is None:
            raise
        is_known = task["node_id"] and (task["stdout_file"] or task["stderr_file"])
        if is_known and not task["actor_id"]:
            raise
    if task["actor_id"]:  # Ray records no ranges for actor tasks
        shown = f"the output of its actor {task['actor_id']}"
        arguments.actor = task["actor_id"]
    else:
        file = await _worker_log(client, arguments, task)
        shown = f"the whole log {_printable_name(file)} of its worker: the output follows a line {_marker(task)!r}"
        arguments.node = task["node_id"]
    sys.stderr.write(f"rayhistory: {NO_OUTPUT_OF_ITS_OWN}, showing {shown}\n")
    arguments.task = arguments.attempt = None
    return await (_copy_actor_log(client, arguments) if arguments.actor else _copy_log(client, arguments, file))


async def _copy_actor_log(client: HistoryClient, arguments: argparse.Namespace) -> bool:
    """Write the log of an incarnation of an actor, by default of the latest with a log; then say which on stderr."""
    count = await count_incarnations(client, arguments.actor) if arguments.incarnation is None else 0
    if count < 2:
        return await _copy_log(client, arguments, None)
    for number in reversed(range(count)):
        note = (
            f"rayhistory: showing incarnation {number} of the actor's incarnations 0 to {count - 1}: "
            "--incarnation selects another\n"
        )
        chosen = argparse.Namespace(**vars(arguments) | {"incarnation": number})
        try:
            return await _copy_log(client, chosen, None, note=note)
        except LogNotFound:
            continue
    return await _copy_log(client, arguments, None)  # raises LogNotFound


async def _worker_log(client: HistoryClient, arguments: argparse.Namespace, task: Row) -> str:
    """Return the log file of a task's worker. If there is none, raise LogNotFound with commands for the next step."""
    if task["node_id"] and task["worker_id"]:
        glob = f"**/worker-{task['worker_id']}-*.{'err' if arguments.err else 'out'}"
        on_node = argparse.Namespace(node=task["node_id"])
        if names := await _file_names(client, on_node, glob):
            return names[-1]  # a file in old/ comes before a newer one
    target = [arguments.session] if arguments.session else []
    target += [*setting_flags(arguments), *([f"--server={arguments.server}"] if arguments.server else [])]
    commands = (["grep", "-F", shlex.quote(_marker(task)), *target], ["logs", *target, "--list"], ["gaps", *target])
    first, second, third = (" ".join(["rayhistory", *command]) for command in commands)
    raise LogNotFound(
        f"the log of task {arguments.task} was not found, because events or logs of its worker are missing. "
        f"Try {first}, {second} or {third}"
    )


def _marker(task: Row) -> str:
    """Return the line that a worker writes before the output of this task."""
    return f":task_name:{TaskOutput.marker(_printable_name(str(task['name'] or '')))}"


async def _copy_log(
    client: HistoryClient, arguments: argparse.Namespace, file: str | None, heading: str = "", note: str = ""
) -> bool:
    """Write one log to standard output, after its heading. Return False if nothing was written.

    The note is written to standard error once the log is found.
    """
    kind = "stream" if arguments.follow else "file"
    chunks = client.stream(f"api/v0/logs/{kind}", _params(arguments, file), endless=arguments.follow)
    written = False
    async with aclosing(chunks), aclosing(_matching_lines(chunks, arguments.grep)) as lines:
        async for chunk in lines if arguments.grep else chunks:
            if not written:
                sys.stderr.write(note)
                sys.stdout.buffer.write(heading.encode())
            written = True
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    if not written:
        sys.stderr.write(note)
    return written


async def _file_names(client: HistoryClient, arguments: argparse.Namespace, glob: str) -> list[str]:
    response = await client.json("api/v0/logs", RayResponse, _node(arguments) | {"glob": glob})
    return sorted(name for names in response.data["result"].values() for name in names if not name.endswith("/"))


def _is_glob(text: str) -> bool:
    return any(char in text for char in "*?[")


def _printable_name(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)


def _node(arguments: argparse.Namespace) -> Params:
    return {"node_id": arguments.node} if arguments.node else {"node_ip": _HEAD_NODE}


def _params(arguments: argparse.Namespace, file: str | None) -> Params:
    """Return the arguments as parameters of Ray's log API."""
    params = {
        "task_id": arguments.task,
        "actor_id": arguments.actor,
        "submission_id": arguments.job,
        "pid": arguments.pid,
        "filename": file,
        "attempt_number": arguments.attempt,
        "incarnation": arguments.incarnation,
        "suffix": "err" if arguments.err else "out",
        "lines": arguments.lines or -1,
    }
    node = {} if arguments.task or arguments.actor else _node(arguments)
    return node | {name: value for name, value in params.items() if value is not None}


async def _matching_lines(
    chunks: AsyncGenerator[bytes, None], pattern: "re.Pattern[bytes]"
) -> AsyncGenerator[bytes, None]:
    """Yield matching lines. A line that is too long for memory is split."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        if matching := [line for line in lines if pattern.search(line)]:
            yield b"\n".join(matching) + b"\n"
    if rest and pattern.search(rest):
        yield rest + b"\n"
