"""`rayhistory timeline`: a trace of all tasks, for Perfetto and chrome://tracing."""

import argparse
import asyncio
import sys

from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.inspect.find_entity import find_job
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write; - is standard output")
    parser.add_argument("--job", metavar="ID", help="only the tasks of this job: its job id or submission id")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_write(arguments, settings))


async def _write(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_client(arguments, settings) as client:
        job = await find_job(client, arguments.job, "job_id") if arguments.job else None
        chunks = client.stream("api/v0/tasks/timeline", {"job_id": job} if job else None)
        if arguments.output == "-":
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            return 0
        with output.atomic_file(arguments.output) as path, path.open("wb") as file:
            async for chunk in chunks:
                file.write(chunk)
    print(f"{arguments.output}: open it at https://ui.perfetto.dev or chrome://tracing")
    return 0
