"""The arguments that name sessions, and their resolution to one or several sessions."""

import argparse
import os
import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from rayhistory.errors import UsageError
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.server.resolve import Selection, parse_session_path
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.sessions.ref import is_session_name

SESSION_NAMES = "session name, namespace/cluster or namespace/~rayjob/name"

ListSessions = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Returns names and paths of the sessions that match a name, newest first."""

_SESSION_ROOT = "/s/"


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add SESSION and --server, for commands that read one session from a server or from the store."""
    parser.add_argument(
        "session", nargs="?", metavar="SESSION", help=f"{SESSION_NAMES}, or the URL of a session (default: the newest)"
    )
    parser.add_argument("--server", metavar="URL", help=f"history server (default: read the store) [{SERVER_VARIABLE}]")


def add_session_names_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add SESSION…, for commands that work on sessions of the store."""
    default = "" if required else " (default: all)"
    parser.add_argument(
        "sessions", nargs="+" if required else "*", metavar="SESSION",
        help=f"session name or namespace/cluster{default}",
    )  # fmt: skip


def server_and_session(arguments: argparse.Namespace) -> tuple[str | None, str]:
    """Return the server's URL, or None to read the store, and the name of the session."""
    server, name = arguments.server, arguments.session or ""
    has_store_flags = any(key.startswith("setting_") for key in vars(arguments))
    if name.startswith(("http://", "https://")):
        if server:
            raise UsageError("SESSION is a URL already: omit --server")
        server, separator, name = re.split("[?#]", name, maxsplit=1)[0].partition(_SESSION_ROOT)
        name = unquote(name)
        if not separator:
            raise UsageError(f"not the URL of a session: {server} (use http://host:8080/s/namespace/cluster/session)")
    if not server and not has_store_flags:
        server = os.environ.get(SERVER_VARIABLE)
    if server and not server.startswith(("http://", "https://")):
        raise UsageError(f"--server={server}: use a URL such as http://host:8080")
    return (server.rstrip("/") if server else None), name.strip("/")


async def session_path(name: str, list_sessions: ListSessions) -> str:
    """Return the URL path of a session, with a slash at its end. Without a name, that of the newest session."""
    if "/" in name:
        return f"{_SESSION_ROOT}{name}{'/latest' if name.count('/') == 1 else ''}/"
    if name and not is_session_name(name):
        raise UsageError(f"invalid session name: {name!r} (see rayhistory sessions)")
    paths = [path for session, path in await list_sessions(name) if name in ("", session)]
    if not paths:
        problem = f"no session {name!r} in the store" if name else "the store has no sessions yet"
        raise UsageError(f"{problem}: see rayhistory sessions")
    if name and len(paths) > 1:
        raise UsageError(f"{len(paths)} sessions are named {name}: use namespace/cluster/session")
    return paths[0]


async def select_session(catalog: SessionCatalog, name: str) -> Selection:
    """Resolve the name of one session in the store."""

    async def list_sessions(_: str) -> list[tuple[str, str]]:
        return [(entry.ref.session, entry.ref.url) for entry in await catalog.entries()]

    if "://" in name:
        raise UsageError(f"{name}: this command reads the store: use {SESSION_NAMES}")
    path = await session_path(name.strip("/"), list_sessions)
    selection, below = parse_session_path(path.removeprefix(_SESSION_ROOT))
    if below:
        raise UsageError(f"invalid session name: {name!r} (see rayhistory sessions)")
    return selection


def is_selected(entry: CatalogEntry, names: list[str]) -> bool:
    """Match a session by its name, its path or its namespace/cluster. An empty list matches every session."""
    ref = entry.ref
    return not names or not {ref.session, ref.path, f"{ref.namespace}/{ref.cluster}"}.isdisjoint(names)


def select_sessions(entries: list[CatalogEntry], names: list[str]) -> list[CatalogEntry]:
    """Return the sessions that the names match; raise UsageError for a name without a match."""
    if not names:
        return entries
    selected: dict[tuple[str, str, str], CatalogEntry] = {}
    for name in names:
        matches = [entry for entry in entries if is_selected(entry, [name])]
        if not matches:
            raise UsageError(f"no session {name!r} in the store: see rayhistory sessions")
        selected |= {entry.ref.identity: entry for entry in matches}
    return list(selected.values())
