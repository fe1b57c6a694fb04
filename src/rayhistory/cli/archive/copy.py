"""`rayhistory copy`: copy sessions to another store."""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from rayhistory.archive.copy import CopyResult, SessionCopy, is_same_store
from rayhistory.archive.session_objects import list_owners
from rayhistory.cli.arguments import STORE_SETTINGS
from rayhistory.cli.progress import progress_bar
from rayhistory.cli.session_args import add_session_names_argument, select_sessions
from rayhistory.cli.session_store import SessionStore, open_session_store
from rayhistory.errors import InvalidSetting, UsageError
from rayhistory.sessions import Layout, Owner
from rayhistory.sessions.catalog import RUNNING, VANISHED, CatalogEntry
from rayhistory.settings import CLI, Settings, resolve, setting_specs
from rayhistory.sizes import format_size
from rayhistory.storage import Store, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_names_argument(parser)
    parser.add_argument("--to", required=True, metavar="URL", help="store to copy to, as in --store")
    parser.add_argument(
        "--to-config",
        metavar="FILE",
        help="JSON file with the settings of that store, if they differ from those of --store",
    )
    parser.add_argument(
        "--log-layout", choices=["as-is", "plain"], default="as-is",
        help="plain: convert packs of logs to whole files, as KubeRay stores them (default: as-is)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    target = _target_settings(arguments.to, arguments.to_config)
    return asyncio.run(_copy(settings, target, arguments.sessions, plain=arguments.log_layout == "plain"))


def _target_settings(url: str, config: str | None) -> Settings:
    """Return the settings of the target store. Store variables in the environment apply only to the source."""
    variables = {variable for spec in setting_specs() if spec.name in STORE_SETTINGS for variable in spec.all_variables}
    environ = {name: value for name, value in os.environ.items() if name not in variables}
    flags = {"setting_store": url} | ({"setting_storage_backend_config_path": config} if config else {})
    try:
        return resolve(CLI, flags, environ)[0]
    except InvalidSetting as error:
        raise _with_target_flags(error) from None


def _with_target_flags(error: InvalidSetting) -> InvalidSetting:
    """In an error about the target, replace each name of a setting by the flag of this command."""
    text = str(error).replace("STORAGE_BACKEND_CONFIG_PATH=", "--to-config=")
    return InvalidSetting(text.replace("--store=", "--to="))


async def _copy(settings: Settings, to: Settings, names: list[str], *, plain: bool) -> int:
    async with open_session_store(settings) as source:
        try:
            target = open_store(to, writable=True), Layout(to.storage_root_dir)
        except InvalidSetting as error:
            raise _with_target_flags(error) from None
        try:
            entries = select_sessions(await source.catalog.entries(), names)
            if await is_same_store((source.store, source.layout), target):
                raise UsageError(f"--to={to.store} is the store that the sessions are in: choose another store")
            owners = await list_owners(source.store, source.layout)
            for entry in entries:
                result = await copy_session(source, entry, target, owners.get(entry.ref.identity, []), plain=plain)
                _print_result(entry, source.catalog.state(entry), result)
        finally:
            await target[0].close()
    return 0


async def copy_session(
    source: SessionStore, entry: CatalogEntry, target: tuple[Store, Layout], owners: list[Owner], *, plain: bool
) -> CopyResult:
    closing = await source.catalog.closing(entry)
    vanished_ms = closing.ns // 1_000_000 if closing and source.catalog.state(entry) == VANISHED else None
    with (
        tempfile.TemporaryDirectory(prefix="rayhistory-copy-") as scratch,
        progress_bar(entry.ref.path) as progress,
    ):
        copy = SessionCopy(entry.ref, (source.store, source.layout), target, Path(scratch), progress)
        return await copy.run(owners, vanished_ms=vanished_ms, plain=plain)


def _print_result(entry: CatalogEntry, state: str, result: CopyResult) -> None:
    path = entry.ref.path
    skipped = f", {result.skipped:,} already there" if result.skipped else ""
    print(f"{path}  copied and verified: {result.objects:,} objects, {format_size(result.size)}{skipped}")
    if result.damaged:
        print(f"{path}  {result.damaged} damaged ranges of its log packs were replaced by a filler in the copy")
    if result.left_out:
        print(f"{path}  {result.left_out} files were left out: most of their bytes are missing from the packs")
    if state == RUNNING:
        print(f"{path}  is still running: copy it again when it has ended")
