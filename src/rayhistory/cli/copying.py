"""`rayhistory copy`: sessions from one store to another."""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from rayhistory.cli.choice import chosen
from rayhistory.cli.progress import progress_bar
from rayhistory.errors import Misconfigured, UsageError
from rayhistory.keeping.copying import Copied, SessionCopy, same_place
from rayhistory.keeping.objects import owners_of_all
from rayhistory.keeping.retention import shown_size
from rayhistory.layout import Layout, Owner
from rayhistory.server.catalogue import RUNNING, VANISHED, Catalogue, Entry
from rayhistory.settings import STORE_COMMANDS, Parser, Settings, declared, own_variable, resolve
from rayhistory.storage import Store, open_store

_STORE_SETTINGS = ("store", "storage_backend", "local_storage_dir", "storage_root_dir", "storage_backend_config_path")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("sessions", nargs="+", metavar="SESSION", help="session or namespace/cluster")
    parser.add_argument("--to", required=True, metavar="URL", help="the store that they are copied to, as in --store")
    parser.add_argument(
        "--to-config", metavar="FILE", help="JSON file with that store's settings, when they differ from --store's"
    )
    parser.add_argument(
        "--log-layout",
        choices=["as-is", "plain"],
        default="as-is",
        help="plain: packs of logs become whole files, as KubeRay's (default: as-is)",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    target = target_settings(arguments.to, arguments.to_config)
    return asyncio.run(_copy(settings, target, arguments.sessions, plain=arguments.log_layout == "plain"))


def target_settings(url: str, config: str | None) -> Settings:
    """The environment says where the source is, and nothing about the target."""
    said = {name: setting for name, _, setting in declared() if name in _STORE_SETTINGS}
    variables = {variable for name, setting in said.items() for variable in (*setting.env, own_variable(name))}
    environ = {name: value for name, value in os.environ.items() if name not in variables}
    flags = {"setting_store": url} | ({"setting_storage_backend_config_path": config} if config else {})
    try:
        return resolve(STORE_COMMANDS, flags, environ)[0]
    except Misconfigured as error:
        raise _about_target(error) from None


def _about_target(error: Misconfigured) -> Misconfigured:
    text = str(error).replace("STORAGE_BACKEND_CONFIG_PATH=", "--to-config=").replace("LOCAL_STORAGE_DIR=", "--to ")
    return Misconfigured(text.replace("--store=", "--to="))


async def _copy(settings: Settings, to: Settings, names: list[str], *, plain: bool) -> int:
    source = open_store(settings), Layout(settings.storage_root_dir)
    try:
        target = open_store(to, writable=True), Layout(to.storage_root_dir)
    except Misconfigured as error:
        raise _about_target(error) from None
    catalogue = Catalogue(*source, settings.vanished_after)
    try:
        entries = chosen(await catalogue.entries(), names)
        if await same_place(source, target):
            raise UsageError(f"--to={to.store} is the store that the sessions are in")
        owners = await owners_of_all(*source)
        for entry in entries:
            copied = await _copy_one(catalogue, entry, source, target, owners.get(entry.ref.identity, []), plain=plain)
            _tell(entry, catalogue.state(entry), copied)
    finally:
        await source[0].close()
        await target[0].close()
    return 0


async def _copy_one(
    catalogue: Catalogue,
    entry: Entry,
    source: tuple[Store, Layout],
    target: tuple[Store, Layout],
    owners: list[Owner],
    *,
    plain: bool,
) -> Copied:
    closing = await catalogue.closing(entry)
    vanished_ms = closing.ns // 1_000_000 if closing and catalogue.state(entry) == VANISHED else None
    with (
        tempfile.TemporaryDirectory(prefix="rayhistory-copy-") as scratch,
        progress_bar(entry.ref.path) as progress,
    ):
        copy = SessionCopy(entry.ref, source, target, Path(scratch), progress)
        return await copy.run(owners, vanished_ms=vanished_ms, plain=plain)


def _tell(entry: Entry, state: str, copied: Copied) -> None:
    already = f", {copied.already:,} of them there already" if copied.already else ""
    print(f"{entry.ref.path}  copied and verified: {copied.objects:,} objects, {shown_size(copied.size)}{already}")
    if copied.damaged:
        print(f"{entry.ref.path}  {copied.damaged} places in its packs of logs are damaged, and filled in the copy")
    if copied.left_out:
        print(f"{entry.ref.path}  {copied.left_out} files are left out: its packs speak of them, and do not hold them")
    if state == RUNNING:
        print(f"{entry.ref.path}  still runs: copy it again when it has ended")
