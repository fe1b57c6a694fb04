"""`rayhistory run`: run a command as a job on a local Ray, and record its session."""

import argparse
import asyncio
import os
import re
import subprocess
import sys
from itertools import dropwhile, pairwise
from pathlib import PurePath

from rayhistory.cli.arguments import add_cluster_name_argument, add_namespace_argument, setting_flags
from rayhistory.cli.local_ray.ray_head import find_ray, job_path
from rayhistory.cli.local_ray.recording import RecordedSession, RecordingOptions, record
from rayhistory.closed_output import write_or_discard
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.names import cluster_name_from
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.running_servers import registered_servers
from rayhistory.server_probe import responds
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings

_DEFAULT_PORT = 8080
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SCRIPT_SUFFIXES = (".py", ".sh", ".ipynb")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_name_argument(parser, None, "the script's name")
    add_namespace_argument(parser)
    parser.add_argument("--num-cpus", type=int, metavar="N", help="number of CPUs for Ray (default: all)")
    parser.add_argument(
        "--port", type=int, default=_DEFAULT_PORT, metavar="PORT",
        help=f"port of your history server, for the printed URL (default: {_DEFAULT_PORT})",
    )  # fmt: skip
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="command to run, after --")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UsageError("no command given: use rayhistory run -- python my_job.py")
    check_command(argv)
    name = arguments.name or name_of_command(argv)
    recorded = asyncio.run(record(RecordingOptions(argv, settings, name, arguments.namespace, arguments.num_cpus)))
    write_or_discard(sys.stderr, asyncio.run(where_to_look(recorded.ref, arguments, settings)))
    if recorded.exit_code != 0:
        explain(recorded, settings, setting_flags(arguments))
    return recorded.exit_code


def check_command(argv: list[str]) -> None:
    """Raise UsageError if the command does not exist. Ray runs it in a shell, so ask a shell with the job's PATH."""
    program = next(dropwhile(_ASSIGNMENT.match, argv), "true")
    environment = os.environ | {"PATH": job_path(find_ray())}
    found = subprocess.run(
        ["sh", "-c", 'command -v -- "$1"', "sh", program], env=environment, stdout=subprocess.DEVNULL, check=False
    )
    if found.returncode != 0:
        raise UsageError(f"no such command: {program}")


def explain(recorded: RecordedSession, settings: Settings, flags: list[str]) -> None:
    """Print why the job failed, and the command for details. An error here must not hide the job's exit code."""
    from rayhistory.cli.inspect.diagnose import read_diagnosis, verdict_paragraph  # noqa: PLC0415 - slow to import

    try:
        arguments = argparse.Namespace(server=None, session=recorded.ref.path, setting_store=None)
        text = verdict_paragraph(asyncio.run(read_diagnosis(arguments, settings)))
    except RayHistoryError as error:
        text = f"rayhistory: the session could not be diagnosed: {error}"
    if text:
        command = " ".join(["rayhistory diagnose", *flags, recorded.ref.path])
        write_or_discard(sys.stderr, f"{text}\nDetails: {command}\n")


def name_of_command(argv: list[str]) -> str:
    """Return a cluster name from the script or module that a command runs, else from its program."""
    for word, following in pairwise([*argv, ""]):
        if word.endswith(_SCRIPT_SUFFIXES):
            return cluster_name_from(PurePath(word).stem)
        if word == "-m" and following:
            return cluster_name_from(following.rpartition(".")[2])
        if word == "-c":
            break
    return cluster_name_from(PurePath(argv[0]).stem)


async def where_to_look(ref: SessionRef, arguments: argparse.Namespace, settings: Settings) -> str:
    """Return the URL of the session on a server that has it, else a command that opens it."""
    named, local = os.environ.get(SERVER_VARIABLE, "").rstrip("/"), f"http://127.0.0.1:{arguments.port}"
    for server in filter(None, (named, local, *registered_servers(settings.cache_dir))):
        if await responds(server, settings, ref.url):
            return f"Session recorded: {server}{ref.url}\n"
    port = [] if arguments.port == _DEFAULT_PORT else [f"--port={arguments.port}"]
    command = " ".join(["rayhistory open --serve", *setting_flags(arguments), *port, ref.path])
    return f"Session recorded. Open it with: {command}\n"
