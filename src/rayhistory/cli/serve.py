"""`rayhistory serve`: the history server on this machine."""

import argparse
import asyncio
from collections.abc import Callable

from rayhistory import jsonlog
from rayhistory.cli.session_store import list_sessions
from rayhistory.server.app import create_app
from rayhistory.server.main import bind, prepare_access
from rayhistory.server.main import serve as serve_until_stopped
from rayhistory.server.pages import frontend
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings

DEFAULT_HOST = "127.0.0.1"
_MAX_LISTED_SESSIONS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: all arguments are settings."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return serve(settings)


def serve(settings: Settings, on_listening: Callable[[str], None] | None = None) -> int:
    """Serve until stopped. `on_listening` is called with the server's URL once connections are accepted."""
    host = settings.host or DEFAULT_HOST
    settings, certificate = prepare_access(settings, host)
    listener = bind(host, settings.port)
    url = f"{'https' if certificate else 'http'}://{host}:{listener.getsockname()[1]}"
    sessions = asyncio.run(list_sessions(settings))
    jsonlog.configure_logging("warning")
    _print_urls(url, settings, sessions)
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
