"""Which sessions of the store are meant."""

from rayhistory.errors import UsageError
from rayhistory.server.catalogue import Entry


def chosen(entries: list[Entry], names: list[str]) -> list[Entry]:
    """Sessions by name, by path, or by cluster (`namespace/cluster`); all when none is named."""
    if not names:
        return entries
    found: dict[tuple[str, str, str], Entry] = {}
    for name in names:
        ours = [e for e in entries if name in (e.ref.session, e.ref.path, f"{e.ref.namespace}/{e.ref.cluster}")]
        if not ours:
            raise UsageError(f"no session {name!r} in the store: see rayhistory sessions")
        found |= {entry.ref.identity: entry for entry in ours}
    return list(found.values())
