"""`rayhistory pin` and `unpin`: exclude sessions from retention, or include them again."""

import argparse
import asyncio

from rayhistory.archive import pins
from rayhistory.cli.session_args import add_session_names_argument, select_sessions
from rayhistory.cli.session_store import open_session_store
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_names_argument(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_run(settings, arguments.sessions, pinned=arguments.pinned))


async def _run(settings: Settings, names: list[str], *, pinned: bool) -> int:
    async with open_session_store(settings) as (store, layout, catalog):
        for entry in select_sessions(await catalog.entries(), names):
            await (pins.pin if pinned else pins.unpin)(store, layout, entry.ref)
            print(f"{entry.ref.path}  {'pinned' if pinned else 'unpinned'}")
    return 0
