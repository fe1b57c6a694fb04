"""The arguments that name sessions, and their resolution to one or several sessions."""

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from rayhistory.errors import UsageError
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.sessions.ref import is_session_name
from rayhistory.sessions.selection import Selection, parse_session_path

SESSION_NAMES = "session name, namespace/cluster or namespace/~rayjob/name"

ListSessions = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Returns names and paths of the sessions that match a name, newest first."""

_SESSION_ROOT = "/s/"


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add SESSION and --server, for commands that read one session from a server or from the store."""
    parser.add_argument(
        "session", nargs="?", metavar="SESSION",
        help=f"{SESSION_NAMES}, each with or without @time, or the URL of a session (default: the newest)",
    )  # fmt: skip
    add_server_argument(parser)


def add_server_argument(parser: argparse.ArgumentParser) -> None:
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
    name = arguments.session or ""
    if not name.startswith(("http://", "https://")):
        return server_url(arguments), name.strip("/")
    if arguments.server:
        raise UsageError("SESSION is a URL already: omit --server")
    server, separator, name = re.split("[?#]", name, maxsplit=1)[0].partition(_SESSION_ROOT)
    if not separator:
        raise UsageError(f"not the URL of a session: {server} (use http://host:8080/s/namespace/cluster/session)")
    return server.rstrip("/"), unquote(name).strip("/")


def server_url(arguments: argparse.Namespace) -> str | None:
    """Return the URL of the server to ask, or None to read the store. Flags of the store exclude the variable."""
    server: str | None = arguments.server
    if not server and not any(key.startswith("setting_") for key in vars(arguments)):
        server = os.environ.get(SERVER_VARIABLE)
    if server and not server.startswith(("http://", "https://")):
        raise UsageError(f"--server={server}: use a URL such as http://host:8080")
    return server.rstrip("/") if server else None


async def session_path(name: str, list_sessions: ListSessions) -> str:
    """Return the URL path of a session, with a slash at its end.

    A name that leaves the choice open (none, a cluster or an owner) means the newest session, which is reported on
    standard error.
    """
    base, at, time = name.partition("@")
    suffix = f"{at}{time}/"
    if base.count("/") > 1 and not re.fullmatch("[^/]+/~[^/]+/[^/]+", base):
        return f"{_SESSION_ROOT}{base}{suffix}"
    if base and "/" not in base and not is_session_name(base):
        raise UsageError(f"invalid session name: {base!r} (see rayhistory sessions)")
    paths = [path for session, path in await list_sessions(base) if "/" in base or base in ("", session)]
    if not paths and "/" in base:
        return f"{_SESSION_ROOT}{base}/latest{suffix}"
    if not paths:
        problem = f"no session {base!r} in the store" if base else "the store has no sessions yet"
        raise UsageError(f"{problem}: see rayhistory sessions")
    if is_session_name(base) and len(paths) > 1:
        raise UsageError(f"{len(paths)} sessions are named {base}: use namespace/cluster/session")
    if not is_session_name(base):
        sys.stderr.write(f"rayhistory: session {paths[0].removeprefix(_SESSION_ROOT).rstrip('/')}\n")
    return paths[0].rstrip("/") + suffix


def listing_filters(name: str) -> dict[str, str]:
    """Return the filters of the session list that find a session, the sessions of a cluster, or those of an owner."""
    namespace, separator, rest = name.partition("/")
    if not separator:
        return {"q": name} if name else {}
    if rest.startswith("~"):
        return {"namespace": namespace, "owner": rest[1:]}
    return {"namespace": namespace, "cluster": rest}


async def select_session(catalog: SessionCatalog, name: str) -> Selection:
    """Resolve the name of one session in the store."""

    async def list_sessions(name: str) -> list[tuple[str, str]]:
        entries = await catalog.entries()
        return [(entry.ref.session, entry.ref.url) for entry in entries if "/" not in name or _is_in(entry, name)]

    if "://" in name:
        raise UsageError(f"{name}: this command reads the store: use {SESSION_NAMES}")
    path = await session_path(name.strip("/"), list_sessions)
    selection, below = parse_session_path(path.removeprefix(_SESSION_ROOT))
    if below:
        raise UsageError(f"invalid session name: {name!r} (see rayhistory sessions)")
    return selection


def _is_in(entry: CatalogEntry, name: str) -> bool:
    """Return whether a session belongs to a namespace/cluster or namespace/~kind/owner."""
    ref = entry.ref
    return name in (f"{ref.namespace}/{ref.cluster}", f"{ref.namespace}/~{ref.owner_kind}/{ref.owner_name}")


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
