"""`rayhistory demo`: record a sample session if the store is empty, then serve."""

import argparse
import asyncio
import sys
from pathlib import Path

from rayhistory.cli import serve
from rayhistory.cli.arguments import add_cluster_name_argument
from rayhistory.cli.local_ray.recording import RecordingOptions, print_status, record
from rayhistory.cli.session_store import list_sessions
from rayhistory.server.main import bind
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_SAMPLE_JOB = Path(__file__).parent / "local_ray" / "sample_job.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_name_argument(parser, "demo", "demo")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    # Fail before the recording, not after it.
    open_store(settings, writable=True)
    bind(settings.host or serve.DEFAULT_HOST, settings.port).close()
    if not asyncio.run(list_sessions(settings)):
        print_status("the store has no sessions: recording a sample job (about a minute)")
        asyncio.run(record(RecordingOptions([sys.executable, str(_SAMPLE_JOB)], settings, arguments.name)))
    return serve.serve(settings)
