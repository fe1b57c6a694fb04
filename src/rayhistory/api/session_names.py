"""Resolve session names, as users write them, to URL paths. The library, commands and agents use it."""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote

from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.sessions.ref import is_session_name

SESSION_ROOT = "/s/"
_SHORT_NAME = re.compile(r"(?:session_)?\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}(?:_[\w.-]*)?", re.ASCII)
"""The time in a session's name, as pages show it, or another beginning of the name."""
_CLUSTER_OR_OWNER = re.compile(r"[^/]+/[^/~][^/]*|[^/]+/~[^/]+/[^/]+")
_MAX_SUGGESTIONS = 3

ListSessions = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Returns names and paths of the sessions that a name may mean (see `listing_filters`), newest first."""


class FoundSession(NamedTuple):
    """The session that was found for a name."""

    path: str
    """URL path with a slash at its end, not quoted."""
    is_choice: bool = False
    """True if several sessions matched, and the newest was chosen."""


async def find_session(name: str, list_sessions: ListSessions) -> FoundSession:
    """Resolve the name of a session, with or without `@time`. A complete path is not looked up."""
    name, at, time = name.strip().removeprefix(SESSION_ROOT).strip("/").partition("@")
    if "/" not in name:
        found = await _find_by_name(name, list_sessions)
    elif _CLUSTER_OR_OWNER.fullmatch(name):
        found = await _find_newest(name, list_sessions)
    elif is_short_name(name.rpartition("/")[2]):
        found = await _find_short_name(name, list_sessions)
    else:
        found = FoundSession(f"{SESSION_ROOT}{name}")
    return found._replace(path=f"{found.path.rstrip('/')}{at}{time}/")


def quote_session_path(path: str) -> str:
    return quote(path, safe="/~@:+")


def listing_filters(name: str) -> dict[str, str]:
    """Return the filters of the session list for a session, a cluster or an owner."""
    namespace, separator, rest = name.partition("/")
    if not separator:
        return {"q": name} if name else {}
    if rest.startswith("~"):
        return {"namespace": namespace, "owner": rest[1:]}
    return {"namespace": namespace, "cluster": rest}


def is_short_name(name: str) -> bool:
    """Return whether a name is the beginning of a session's name, with all of its time."""
    return _SHORT_NAME.fullmatch(name) is not None and not is_session_name(name)


def has_short_name(session: str, name: str) -> bool:
    """Return whether the name of a session begins with the short name."""
    return f"{session.removeprefix('session_')}_".startswith(f"{name.removeprefix('session_').rstrip('_')}_")


async def _find_short_name(name: str, list_sessions: ListSessions) -> FoundSession:
    """Find a session by its short name, with or without the path of its cluster before it."""
    cluster, _, short = name.rpartition("/")
    found = [
        (session, path) for session, path in await list_sessions(cluster or short) if has_short_name(session, short)
    ]
    if len(found) > 1:
        raise UsageError(f"{len(found)} sessions have the name {name}: use one of {', '.join(_full_names(found))}")
    if not found:
        names = [session for session, _ in await list_sessions("")]
        raise SessionNotFound(f"no session {name!r} in the store{_hint(f'session_{short}', names)}")
    return FoundSession(found[0][1])


def _full_names(found: list[tuple[str, str]]) -> list[str]:
    """Return the paths of the newest sessions, without what precedes them in a URL."""
    return [path.removeprefix(SESSION_ROOT).strip("/") for _, path in found[:_MAX_SUGGESTIONS]]


async def _find_by_name(name: str, list_sessions: ListSessions) -> FoundSession:
    if is_short_name(name):
        return await _find_short_name(name, list_sessions)
    if name and not is_session_name(name):
        return await _find_by_cluster(name, list_sessions)
    paths = [path for session, path in await list_sessions(name) if name in ("", session)]
    if not paths:
        if not name:
            raise SessionNotFound("the store has no sessions yet: record one with rayhistory run -- python my_job.py")
        names = [session for session, _ in await list_sessions("")]
        raise SessionNotFound(f"no session {name!r} in the store{_hint(name, names)}")
    if name and len(paths) > 1:
        raise UsageError(f"{len(paths)} sessions are named {name}: use namespace/cluster/session")
    return FoundSession(paths[0], is_choice=not name)


async def _find_by_cluster(name: str, list_sessions: ListSessions) -> FoundSession:
    """Find the newest session of a cluster by name. The name must be unique among all namespaces."""
    paths = [path for _, path in await list_sessions(name) if path.split("/")[3:4] == [name]]
    namespaces = sorted({path.split("/")[2] for path in paths})
    if not paths:
        listed = await list_sessions("")
        names = [*(path.split("/")[3] for _, path in listed), *(session for session, _ in listed)]
        raise SessionNotFound(f"no session or cluster {name!r} in the store{_hint(name, names)}")
    if len(namespaces) > 1:
        raise UsageError(f"{len(namespaces)} namespaces have a cluster {name!r}: use {namespaces[0]}/{name}")
    return FoundSession(paths[0], is_choice=True)


async def _find_newest(name: str, list_sessions: ListSessions) -> FoundSession:
    """Find the newest session of a cluster or owner.

    If there is none, and no similar name either, let the server return the error.
    """
    if listed := await list_sessions(name):
        return FoundSession(listed[0][1], is_choice=True)
    names = ["/".join(path.split("/")[2:4]) for _, path in await list_sessions("")]
    if hint := _did_you_mean(name, names):
        raise SessionNotFound(f"the store has no session of {name}{hint}")
    return FoundSession(f"{SESSION_ROOT}{name}/latest")


def _hint(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: similar names, or the command that lists all."""
    return _did_you_mean(name, names) or ": rayhistory sessions lists them"


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    closest = closest_names(name, dict.fromkeys(names))
    return f": did you mean {' or '.join(closest)}?" if closest else ""


def closest_names(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), _MAX_SUGGESTIONS)
