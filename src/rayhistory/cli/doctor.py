"""`rayhistory doctor`: one line per thing that must be right, and what to do about those that are not."""

import argparse
import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import msgspec

from rayhistory.cli.env import installed_ray
from rayhistory.errors import ObjectExists, RayHistoryError, StoreError
from rayhistory.layout import Layout
from rayhistory.rayenv import export_environment
from rayhistory.server import frontend
from rayhistory.server.catalogue import Catalogue
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store


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
    try:
        entries = await Catalogue(store, layout, settings.vanished_after).entries()
        yield Finding(True, f"store can be listed: {len(entries)} sessions")
    except StoreError as error:
        yield Finding(False, f"store cannot be listed: {error}", "The server needs permission to list and to read.")
    for what, problem in await _write_check(store, layout):
        yield Finding(problem is None, f"store: {what}" + (f" failed: {problem}" if problem else ""),
                      "The collector needs permission to write; the server can do without.")  # fmt: skip
    await store.close()


async def _write_check(store: Store, layout: Layout) -> list[tuple[str, str | None]]:
    key = layout.sessions_prefix().replace("sessions", "doctor") + f"/{secrets.token_hex(8)}"
    done: list[tuple[str, str | None]] = []
    try:
        await store.create(key, b"doctor")
        done.append(("objects can be created", None))
        with suppress(ObjectExists):
            await store.create(key, b"again")
            done.append(("conditional create", "a second create of the same key succeeded"))
        good = await store.get_range(key, 0, 3) == b"doc"
        done.append(("objects can be read by range", None if good else "other bytes came back"))
        await store.delete(key)
        done.append(("objects can be deleted", None))
    except StoreError as error:
        done.append(("write, read and delete", str(error)))
    return done


def _ray(settings: Settings) -> Iterator[Finding]:
    version = installed_ray()
    yield Finding(version is not None, f"Ray {version} is installed" if version else "Ray is not installed here",
                  "Only `rayhistory run` needs it: pip install 'ray[default]'", required=False)  # fmt: skip
    found = frontend.find_frontend(settings.dashboard_dir)
    yield Finding(found is not None, f"dashboard frontend: {found}" if found else frontend.ABSENT, frontend.ADVICE)
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
