"""Which sessions are meant: one, as all commands that look into a session are told; or many, of a store."""

from collections.abc import Awaitable, Callable

from rayhistory.errors import UsageError
from rayhistory.layout.session import is_session_name
from rayhistory.server.catalogue import Catalogue, Entry
from rayhistory.server.resolve import Selection, parse_session_path

Listed = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Names and paths of the sessions that have this in their names, newest first."""

_ADDRESS = "/s/"


async def path_of(name: str, listed: Listed) -> str:
    """The path below which the session answers, with a slash at its end; without a name, that of the newest."""
    if "/" in name:
        return f"{_ADDRESS}{name}{'/latest' if name.count('/') == 1 else ''}/"
    if name and not is_session_name(name):
        raise UsageError(f"not a session: {name!r} (see rayhistory sessions)")
    paths = [path for session, path in await listed(name) if name in ("", session)]
    if not paths:
        what = f"no session {name!r} is in the store" if name else "the store holds no session yet"
        raise UsageError(f"{what}: see rayhistory sessions")
    if name and len(paths) > 1:
        raise UsageError(f"{name} is the name of {len(paths)} sessions: say namespace/cluster/session")
    return paths[0]


async def selected(catalogue: Catalogue, name: str) -> Selection:
    """The same, of a store that is read without any server."""

    async def listed(_: str) -> list[tuple[str, str]]:
        newest = sorted(await catalogue.entries(), key=lambda entry: entry.started_ms or 0, reverse=True)
        return [(entry.ref.session, entry.ref.url) for entry in newest]

    if "://" in name:
        raise UsageError(f"{name}: this command reads the store, so name the session without a server")
    path = await path_of(name.strip("/"), listed)
    selection, below = parse_session_path(path.removeprefix(_ADDRESS))
    if below:
        raise UsageError(f"not a session: {name!r} (see rayhistory sessions)")
    return selection


def is_meant(entry: Entry, names: list[str]) -> bool:
    """By its name, by its path, or by its cluster (`namespace/cluster`); always when nothing is named."""
    ref = entry.ref
    return not names or not {ref.session, ref.path, f"{ref.namespace}/{ref.cluster}"}.isdisjoint(names)


def chosen(entries: list[Entry], names: list[str]) -> list[Entry]:
    """The sessions that are meant; a name that means none is a mistake."""
    if not names:
        return entries
    found: dict[tuple[str, str, str], Entry] = {}
    for name in names:
        ours = [entry for entry in entries if is_meant(entry, [name])]
        if not ours:
            raise UsageError(f"no session {name!r} in the store: see rayhistory sessions")
        found |= {entry.ref.identity: entry for entry in ours}
    return list(found.values())
