"""`rayhistory bundle`: write a session to one file, to send it to somebody without access to the store."""

import argparse
import asyncio
import tempfile
from pathlib import Path

from rayhistory import __version__
from rayhistory.api.async_history import AsyncSession
from rayhistory.archive.session_objects import list_owners
from rayhistory.bundle.report import gather_report
from rayhistory.bundle.report_page import report_page
from rayhistory.bundle.session_zip import write_zip
from rayhistory.cli.archive.copy import copy_session
from rayhistory.cli.client import open_client
from rayhistory.cli.output import atomic_file
from rayhistory.cli.session_args import add_session_arguments, select_session, server_and_session
from rayhistory.cli.session_store import open_session_store
from rayhistory.errors import UsageError
from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.sessions.selection import Selection
from rayhistory.settings import Settings
from rayhistory.sizes import format_size
from rayhistory.storage.local import LocalStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE",
        help="run.html: a report of at most 5 MB, without secrets; run.zip: all data, for `rayhistory serve run.zip`",
    )  # fmt: skip


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    suffix = Path(arguments.output).suffix.lower()
    if suffix not in (".html", ".zip"):
        raise UsageError(f"--output={arguments.output}: use a name that ends in .html or .zip")
    write = _write_report if suffix == ".html" else _write_zip
    with atomic_file(arguments.output) as file:
        asyncio.run(write(arguments, settings, file))
    print(f"{arguments.output}  {format_size(Path(arguments.output).stat().st_size)}")
    return 0


async def _write_report(arguments: argparse.Namespace, settings: Settings, file: Path) -> None:
    async with open_client(arguments, settings) as client:
        report = await gather_report(AsyncSession(client, server_and_session(arguments)[0] or ""))
    await asyncio.to_thread(file.write_bytes, report_page(report, __version__))


async def _write_zip(arguments: argparse.Namespace, settings: Settings, file: Path) -> None:
    """Copy the session to a store in a temporary directory, and pack this directory into a zip archive."""
    server, name = server_and_session(arguments)
    if server:
        raise UsageError("a zip archive can only be made from a store: omit --server, or use a name that ends in .html")
    async with open_session_store(settings) as source:
        selection = await select_session(source.catalog, name)
        if selection.as_of_ms is not None:
            raise UsageError("a zip archive contains all data of a session: omit the time")
        entry = await _find(source.catalog, selection)
        owners = (await list_owners(source.store, source.layout)).get(entry.ref.identity, [])
        with tempfile.TemporaryDirectory(prefix=".rayhistory-bundle-", dir=file.parent) as folder:
            await copy_session(source, entry, (LocalStore(Path(folder)), Layout()), owners, plain=False)
            await asyncio.to_thread(write_zip, Path(folder), file)


async def _find(catalog: SessionCatalog, selection: Selection) -> CatalogEntry:
    if selection.owner_kind:
        return await catalog.find_owned(selection.namespace, selection.owner_kind, selection.name, selection.session)
    return await catalog.find(selection.namespace, selection.name, selection.session)
