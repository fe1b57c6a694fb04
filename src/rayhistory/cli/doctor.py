"""`rayhistory doctor`: one line per thing that must be right, and what to do about those that are not."""

import argparse
import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec

from rayhistory.cli.env import installed_ray
from rayhistory.errors import BucketNotFound, ObjectExists, RayHistoryError, StoreError
from rayhistory.layout import Layout
from rayhistory.rayenv import export_environment
from rayhistory.server import frontend
from rayhistory.server.catalogue import Catalogue
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store
from rayhistory.storage.permissions import Permissions, permissions_of


class Finding(msgspec.Struct):
    good: bool
    what: str
    advice: str = ""
    required: bool = True


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    findings = asyncio.run(examine(settings))
    for finding in findings:
        mark = "ok  " if finding.good else "FAIL" if finding.required else "note"
        print(f"{mark}  {finding.what}")
        if not finding.good and finding.advice:
            print(f"      {finding.advice}")
    return 0 if all(finding.good or not finding.required for finding in findings) else 1


async def examine(settings: Settings) -> list[Finding]:
    findings = [finding async for finding in _store(settings)]
    findings += _ray(settings)
    findings += [_port(settings.port, "historyserver"), _port(8084, "collector")]
    return findings


async def _store(settings: Settings) -> AsyncIterator[Finding]:
    try:
        store = open_store(settings, writable=True)
    except RayHistoryError as error:
        yield Finding(False, f"store: {error}", "Correct the setting that is named, or give another store.")
        return
    yield Finding(True, f"store: {store.url}")
    layout = Layout(settings.storage_root_dir)
    names = permissions_of(settings.storage_backend)
    try:
        entries = await Catalogue(store, layout, settings.vanished_after).entries()
        yield Finding(True, f"store can be listed: {len(entries)} sessions")
    except BucketNotFound as error:
        makes = f"The collector makes it at its first write; it needs {names.make_bucket} for that."
        yield Finding(False, f"store: {error}", makes if names.make_bucket else "Create it, or name another.")
        await store.close()
        return
    except StoreError as error:
        yield Finding(False, f"store cannot be listed: {error}", f"Collector and server need {names.list}.")
    async for finding in _object_checks(store, f"{layout.scratch_prefix()}/{secrets.token_hex(8)}", names):
        yield finding
    await store.close()


async def _object_checks(store: Store, key: str, names: Permissions) -> AsyncIterator[Finding]:
    """Each thing that is done with an object, on one that is gone afterwards."""

    async def check(what: str, work: Callable[[], Awaitable[str]], needs: str) -> Finding:
        try:
            problem = await work()
        except StoreError as error:
            problem = str(error)
        return Finding(not problem, f"store: {what}" + (f" failed: {problem}" if problem else ""), needs)

    async def write() -> str:
        await store.put(key, b"doctor")
        return ""

    async def read() -> str:
        return "" if await store.get_range(key, 1, 4) == b"oct" else "other bytes came back"

    async def create() -> str:
        await store.create(f"{key}-once", b"doctor")
        with suppress(ObjectExists):
            await store.create(f"{key}-once", b"again")
            return "a second create of the same key succeeded"
        return ""

    async def delete() -> str:
        await store.delete(key)
        await store.delete(f"{key}-once")
        return ""

    role = f" (or the role {names.role!r})" if names.role else ""
    writers = f"The collector needs {names.write}{role}; the server can do without."
    yield await check("objects can be written", write, writers)
    yield await check("objects can be read by range", read, f"Collector and server need {names.read}{role}.")
    yield await check(
        "objects can be created, and only once",
        create,
        "A store without it may show a session's index twice. " + writers,
    )
    yield await check("objects can be deleted", delete, f"Retention needs {names.delete}{role}; nothing else does.")


def _ray(settings: Settings) -> Iterator[Finding]:
    version = installed_ray()
    yield Finding(version is not None, f"Ray {version} is installed" if version else "Ray is not installed here",
                  "Only `rayhistory run` needs it: pip install 'ray[default]'", required=False)  # fmt: skip
    found = ", ".join(each.version for each in frontend.Frontends(settings.dashboard_dir).installed())
    yield Finding(bool(found), f"dashboard frontends: {found}" if found else frontend.ABSENT, frontend.ADVICE)
    wanted = export_environment("", version or "2.60.0")
    missing = [name for name in wanted if not os.environ.get(name)]
    yield Finding(not missing, "Ray's export settings are in this environment" if not missing
                  else f"Ray's export settings are not in this environment ({len(missing)} missing)",
                  "`rayhistory run` sets them by itself; for your own cluster: eval \"$(rayhistory env)\"",
                  required=False)  # fmt: skip


def _port(port: int, program: str) -> Finding:
    with socket.socket() as probe:
        free = probe.connect_ex(("127.0.0.1", port)) != 0
    advice = f"Something listens there already: fine if it is {program}, else choose another port."
    return Finding(free, f"port {port} ({program}) is free" if free else f"port {port} ({program}) is in use",
                   advice, required=False)  # fmt: skip
