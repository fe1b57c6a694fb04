"""`rayhistory import-dir`: a session directory that was found on a disk."""

import argparse
import asyncio

from rayhistory.cli.progress import progress_bar
from rayhistory.keeping.importing import Imported, checked_directory, import_directory
from rayhistory.keeping.records import refuse_if_busy
from rayhistory.keeping.retention import shown_size
from rayhistory.layout import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage import open_store


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    directory = checked_directory(arguments.directory)
    ref = SessionRef.checked(arguments.namespace, arguments.name, directory.name)

    async def work() -> Imported:
        store, layout = open_store(settings, writable=True), Layout(settings.storage_root_dir)
        try:
            await refuse_if_busy(store, layout, ref, settings.vanished_after)
            with progress_bar(ref.path) as progress:
                return await import_directory(directory, store, layout, ref, progress)
        finally:
            await store.close()

    done = asyncio.run(work())
    print(
        f"{ref.path}  brought in, node {done.node}: {done.files:,} log files, {shown_size(done.size)}, "
        f"{done.records:,} export records"
    )
    if not done.records:
        print("No export files were found, so there are logs and cluster events, but no tables of tasks and actors.")
    if done.bad_lines:
        print(f"{done.bad_lines:,} lines of export files could not be read; the gaps count them.")
    for name in done.left[:10]:
        print(f"left behind, because a store cannot hold its name: {name!r}")
    return 0
