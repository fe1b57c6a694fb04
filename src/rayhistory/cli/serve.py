"""`rayhistory serve`: the history server on this machine."""

import argparse
import asyncio
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from rayhistory import jsonlog
from rayhistory.bundle.session_zip import extract_zip
from rayhistory.cli.session_store import list_sessions
from rayhistory.running_servers import register_server
from rayhistory.server import frontend
from rayhistory.server.app import create_app
from rayhistory.server.main import bind, prepare_access, warn_about_open_access
from rayhistory.server.main import serve as serve_until_stopped
from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings

DEFAULT_HOST = "127.0.0.1"
_MAX_LISTED_SESSIONS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="zip archive of a session, from rayhistory bundle (default: the store)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if not arguments.file:
        return serve(settings)
    with tempfile.TemporaryDirectory(prefix="rayhistory-serve-") as folder:
        extract_zip(Path(arguments.file), Path(folder))
        settings = dataclasses.replace(
            settings, storage_backend="local", local_storage_dir=folder, storage_root_dir=Layout().root
        )
        return serve(settings)


def serve(settings: Settings, on_listening: Callable[[str], None] | None = None) -> int:
    """Serve until stopped. `on_listening` is called with the server's URL once connections are accepted."""
    host = settings.host or DEFAULT_HOST
    settings, certificate = prepare_access(settings, host)
    listener = bind(host, settings.port)
    scheme, port = "https" if certificate else "http", listener.getsockname()[1]
    url = f"{scheme}://{host}:{port}"
    sessions = asyncio.run(list_sessions(settings))
    jsonlog.configure_logging("warning")
    warn_about_open_access(settings, host)
    _print_urls(url, settings, sessions)
    with register_server(settings.cache_dir, port, scheme):
        if on_listening:
            on_listening(url)
        serve_until_stopped(create_app(settings), listener, certificate)
    return 0


def _print_urls(url: str, settings: Settings, sessions: list[CatalogEntry]) -> None:
    print(f"\nRay History Server:  {url}/")
    for entry in sessions[:_MAX_LISTED_SESSIONS]:
        print(f"  {entry.ref.cluster:<20} {url}{entry.ref.url}")
    if len(sessions) > _MAX_LISTED_SESSIONS:
        print(f"  and {len(sessions) - _MAX_LISTED_SESSIONS} more")
    if not sessions:
        print("  The store has no sessions yet. Record one with: rayhistory run -- python my_job.py")
    if not frontend.Frontends(settings.dashboard_dir).installed():
        print(f"  {frontend.NOT_INSTALLED}. {frontend.INSTALL_HINT}")
    print("Press Ctrl-C to stop.", flush=True)
