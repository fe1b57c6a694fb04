"""Names of sessions as people write them, and their URL paths."""

import difflib
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import quote

from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.sessions.ref import is_session_name

SESSION_FORMS = (
    "session name, namespace/cluster, namespace/cluster/session or namespace/~rayjob/name, each with or without @time"
)
_MAX_SUGGESTIONS = 3

ListSessions = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Returns names and paths of the sessions that match a name, newest first."""


async def session_path(name: str, list_sessions: ListSessions) -> str:
    """Return the URL path of a session, with a slash at its end. Without a name, that of the newest session."""
    name, at, time = name.strip().removeprefix("/s/").strip("/").partition("@")
    if "/" in name:
        path = f"/s/{_with_session(name)}"
    else:
        path = await _path_by_name(name, list_sessions)
    return f"{quote(path.rstrip('/'), safe='/~')}{at}{quote(time, safe=':+')}/"


def _with_session(name: str) -> str:
    """Add `latest` where only a cluster or an owner is named."""
    parts = name.split("/")
    names_owner = len(parts) > 1 and parts[1].startswith("~")
    return f"{name}/latest" if len(parts) == (3 if names_owner else 2) else name


async def _path_by_name(name: str, list_sessions: ListSessions) -> str:
    if name and not is_session_name(name):
        raise UsageError(f"invalid session name {name!r}: use a {SESSION_FORMS}")
    paths = [path for session, path in await list_sessions(name) if name in ("", session)]
    if not paths:
        raise SessionNotFound(await _not_found(name, list_sessions))
    if name and len(paths) > 1:
        raise UsageError(f"{len(paths)} sessions are named {name}: use namespace/cluster/session")
    return paths[0]


async def _not_found(name: str, list_sessions: ListSessions) -> str:
    if not name:
        return "the store has no sessions yet"
    closest = closest_names(name, [session for session, _ in await list_sessions("")])
    return f"no session {name!r}" + (f": did you mean {' or '.join(closest)}?" if closest else "")


def closest_names(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), _MAX_SUGGESTIONS)
