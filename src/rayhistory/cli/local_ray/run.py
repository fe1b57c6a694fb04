"""`rayhistory run`: run a command as a job on a local Ray, and record its session."""

import argparse
import asyncio
import sys

from rayhistory.cli.arguments import add_cluster_arguments
from rayhistory.cli.inspect.diagnose import read_diagnosis, verdict_paragraph
from rayhistory.cli.local_ray.recording import RecordedSession, RecordingOptions, record
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser)
    parser.add_argument("--num-cpus", type=int, metavar="N", help="number of CPUs for Ray (default: all)")
    parser.add_argument(
        "--port", type=int, default=8080, metavar="PORT",
        help="port of your history server, for the printed URL (default: 8080)",
    )  # fmt: skip
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="command to run, after --")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UsageError("no command given: use rayhistory run -- python my_job.py")
    options = RecordingOptions(argv, settings, arguments.name, arguments.namespace, arguments.num_cpus)
    recorded = asyncio.run(record(options))
    url = f"http://127.0.0.1:{arguments.port}{recorded.url}"
    sys.stderr.write(f"Session recorded: {url}  (start the server with: rayhistory serve)\n")
    if recorded.exit_code != 0:
        _explain(recorded, settings, url)
    return recorded.exit_code


def _explain(recorded: RecordedSession, settings: Settings, url: str) -> None:
    """Print why the job failed. That is a service: a problem with it must not hide the job's own exit code."""
    try:
        arguments = argparse.Namespace(server=None, session=recorded.ref.path, setting_store=None)
        text = verdict_paragraph(asyncio.run(read_diagnosis(arguments, settings)))
    except RayHistoryError as error:
        text = f"rayhistory: the session could not be diagnosed: {error}"
    if text:
        sys.stderr.write(f"{text}\nDetails: {url}diagnosis, or rayhistory diagnose\n")
