"""`rayhistory import-dir`: import one of Ray's session directories into the store."""

import argparse
import asyncio

from rayhistory.archive.import_dir import ImportResult, check_directory, import_directory
from rayhistory.archive.registration import require_writable
from rayhistory.cli.arguments import add_cluster_arguments
from rayhistory.cli.progress import progress_bar
from rayhistory.cli.session_store import open_session_store
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings
from rayhistory.sizes import format_size

_MAX_LISTED_FILES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="session directory, such as /tmp/ray/session_…")
    add_cluster_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    directory = check_directory(arguments.directory)
    ref = SessionRef.checked(arguments.namespace, arguments.name, directory.name)

    async def import_session() -> ImportResult:
        async with open_session_store(settings, writable=True) as (store, layout, _):
            await require_writable(store, layout, ref, settings.vanished_after)
            with progress_bar(ref.path) as progress:
                return await import_directory(directory, store, layout, ref, progress)

    result = asyncio.run(import_session())
    print(
        f"{ref.path}  imported, node {result.node}: {result.files:,} log files, {format_size(result.size)}, "
        f"{result.records:,} export records"
    )
    if not result.records:
        print("No export files found: the session has logs and cluster events, but no tasks, actors or jobs.")
    if result.bad_lines:
        print(f"{result.bad_lines:,} lines of export files are unreadable and counted as gaps.")
    for name in result.skipped[:_MAX_LISTED_FILES]:
        print(f"skipped, the name is not a valid key: {name!r}")
    return 0
