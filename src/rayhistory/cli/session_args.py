"""The arguments that name sessions, and their resolution to one or several sessions."""

import argparse
import os
import re
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

from rayhistory.api.session_names import SESSION_ROOT, ListSessions, find_session, has_short_name, is_short_name
from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.sessions.ref import is_session_name
from rayhistory.sessions.selection import Selection, parse_session_path

SESSION_NAMES = "session name, namespace/cluster or namespace/~rayjob/name"


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add SESSION and --server, for commands that read one session from a server or from the store."""
    add_session_argument(parser, f"{SESSION_NAMES}, each with or without @time, or the URL of a session")
    add_server_argument(parser)


def add_session_argument(parser: argparse.ArgumentParser, names: str) -> None:
    """Add SESSION, and --session with the same meaning."""
    parser.set_defaults(session=None)
    # A default of the positional argument would replace the value of the flag.
    parser.add_argument(
        "session", nargs="?", metavar="SESSION", action=_StoreOnce, default=argparse.SUPPRESS,
        help=f"{names} (default: the newest)",
    )  # fmt: skip
    parser.add_argument(
        "--session", metavar="SESSION", action=_StoreOnce, default=argparse.SUPPRESS, help="the same as SESSION"
    )


class _StoreOnce(argparse.Action):
    """An argparse action that stores a value, and reports an error if there already is one."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"several sessions given: {getattr(namespace, self.dest)} and {values}")
        setattr(namespace, self.dest, values)


def add_server_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="URL", help=f"history server (default: read the store) [{SERVER_VARIABLE}]")


def add_session_names_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add SESSION…, for commands that work on sessions of the store."""
    default = "" if required else " (default: all)"
    parser.add_argument(
        "sessions", nargs="+" if required else "*", metavar="SESSION",
        help=f"session name, cluster or namespace/cluster{default}",
    )  # fmt: skip


def server_and_session(arguments: argparse.Namespace) -> tuple[str | None, str]:
    """Return the server's URL (None: read the store) and the name of the session."""
    name = arguments.session or ""
    if not name.startswith(("http://", "https://")):
        return server_url(arguments), name.strip("/")
    if arguments.server:
        raise UsageError("SESSION is already a URL: omit --server")
    server, name = _split_url(name)
    if not name and urlsplit(server).path:
        raise UsageError(f"{server} is not the URL of a session: use http://host:8080/s/namespace/cluster/session")
    return server, name


def _split_url(url: str) -> tuple[str, str]:
    """Return the URL of a server, and the name of the session on it (empty for the URL of a server)."""
    server, _, name = re.split("[?#]", url, maxsplit=1)[0].partition(SESSION_ROOT)
    return server.rstrip("/"), unquote(name).strip("/")


def server_url(arguments: argparse.Namespace) -> str | None:
    """Return the URL of the server, or None to read the store.

    If a flag names a store, the environment variable with a server is ignored.
    """
    server, source = arguments.server, "--server"
    if not server and not any(key.startswith("setting_") for key in vars(arguments)):
        server, source = os.environ.get(SERVER_VARIABLE), SERVER_VARIABLE
    if not server:
        return None
    if not server.startswith(("http://", "https://")):
        raise UsageError(f"{source}={server}: use a URL such as http://host:8080")
    base, name = _split_url(server)
    if name:
        right_call = f"{source}={base}, and the session {name.removesuffix('/latest')}"
        raise UsageError(f"{source}={server} is the URL of a session, not of a server: use {right_call}")
    return base


async def session_path(name: str, list_sessions: ListSessions) -> str:
    """Return the URL path of a session, with a final slash.

    If several sessions match and the newest is chosen, print its name on standard error.
    """
    try:
        found = await find_session(name, list_sessions)
    except SessionNotFound as error:
        raise UsageError(str(error)) from None
    if found.is_choice:
        chosen = found.path.partition("@")[0].removeprefix(SESSION_ROOT).rstrip("/")
        sys.stderr.write(f"rayhistory: session {chosen}\n")
    return found.path


async def select_session(catalog: SessionCatalog, name: str) -> Selection:
    """Resolve the name of one session in the store."""

    async def list_sessions(name: str) -> list[tuple[str, str]]:
        entries = await catalog.entries()
        return [(entry.ref.session, entry.ref.url) for entry in entries if "/" not in name or _is_in(entry, name)]

    if "://" in name:
        raise UsageError(f"this command reads the store and does not accept {name}: use {SESSION_NAMES}")
    path = await session_path(name.strip("/"), list_sessions)
    selection, below = parse_session_path(path.removeprefix(SESSION_ROOT))
    if below:
        raise UsageError(f"invalid session name: {name!r} (see rayhistory sessions)")
    return selection


def _is_in(entry: CatalogEntry, name: str) -> bool:
    """Return whether a session belongs to this cluster (`namespace/cluster`) or owner (`namespace/~kind/owner`)."""
    ref = entry.ref
    return name in (f"{ref.namespace}/{ref.cluster}", f"{ref.namespace}/~{ref.owner_kind}/{ref.owner_name}")


def is_selected(entry: CatalogEntry, names: list[str]) -> bool:
    """Return whether a session matches one of the names, or there are none.

    A name is that of the session or the beginning of it, its path, or its cluster or owner with or without namespace.
    """
    return not names or any(_matches(entry, name.strip("/")) for name in names)


def _matches(entry: CatalogEntry, name: str) -> bool:
    ref = entry.ref
    cluster, _, session = name.rpartition("/")
    if is_short_name(session):
        return has_short_name(ref.session, session) and cluster in ("", f"{ref.namespace}/{ref.cluster}")
    return name in (ref.session, ref.path, ref.cluster) or _is_in(entry, name)


def select_sessions(entries: list[CatalogEntry], names: list[str]) -> list[CatalogEntry]:
    """Return the sessions that the names match; raise UsageError for a name without a match, or with an unclear one."""
    if not names:
        return entries
    selected: dict[tuple[str, str, str], CatalogEntry] = {}
    for name in names:
        matches = [entry for entry in entries if is_selected(entry, [name])]
        if not matches:
            raise UsageError(f"no session {name!r} in the store: list sessions with rayhistory sessions")
        clusters = sorted({f"{entry.ref.namespace}/{entry.ref.cluster}" for entry in matches})
        if len(clusters) > 1 and "/" not in name and not is_session_name(name):
            raise UsageError(f"{name} matches sessions of {len(clusters)} clusters: use {clusters[0]} or another path")
        selected |= {entry.ref.identity: entry for entry in matches}
    return list(selected.values())
