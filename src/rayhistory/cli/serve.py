"""`rayhistory serve` and `rayhistory demo`: the history server for one person, on loopback."""

import argparse
import asyncio
import sys
from pathlib import Path

from rayhistory import jsonlog
from rayhistory.cli import record
from rayhistory.layout import Layout
from rayhistory.server import frontend
from rayhistory.server.app import create_app
from rayhistory.server.catalogue import Catalogue, Entry
from rayhistory.server.main import listen, listening
from rayhistory.server.main import serve as serve_until_stopped
from rayhistory.settings import Settings
from rayhistory.storage import open_store


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    host = settings.host or "127.0.0.1"
    settings, certificate = listening(settings, host)
    listener = listen(host, settings.port)
    address = f"{'https' if certificate else 'http'}://{host}:{listener.getsockname()[1]}"
    entries = asyncio.run(_entries(settings))
    jsonlog.set_up("warning")
    _greet(address, settings, entries)
    serve_until_stopped(create_app(settings), listener, certificate)
    return 0


def demo(arguments: argparse.Namespace, settings: Settings) -> int:
    """A first session to look at, and then the server."""
    open_store(settings, writable=True)
    listen(settings.host or "127.0.0.1", settings.port).close()
    if not asyncio.run(_entries(settings)):
        record.say("the store holds no session yet: recording a sample job, which takes about a minute")
        script = Path(__file__).with_name("sample_job.py")
        asyncio.run(record.record(record.Wish([sys.executable, str(script)], settings, arguments.name)))
    return run(arguments, settings)


async def _entries(settings: Settings) -> list[Entry]:
    store = open_store(settings)
    try:
        return await Catalogue(store, Layout(settings.storage_root_dir), settings.vanished_after).entries()
    finally:
        await store.close()


def _greet(address: str, settings: Settings, entries: list[Entry]) -> None:
    print(f"\nThe Ray History Server is at  {address}/")
    for entry in entries[:3]:
        print(f"  {entry.ref.cluster:<20} {address}{entry.ref.url}")
    if len(entries) > 3:
        print(f"  and {len(entries) - 3} more")
    if not entries:
        print("  The store holds no session yet. Record one with: rayhistory run -- python my_job.py")
    if not frontend.Frontends(settings.dashboard_dir).installed():
        print(f"  {frontend.ABSENT}. {frontend.ADVICE}")
    print("Press Ctrl-C to stop.", flush=True)
