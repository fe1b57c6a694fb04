"""What there is to fold in a session: the objects with events, snapshots and event logs."""

import hashlib
from enum import Enum

import msgspec

from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.keys import is_node_folder
from rayhistory.storage import Store


class Kind(Enum):
    EVENTS = "events"
    EVENT_LOG = "event log"
    ENDPOINT = "endpoint"


class Source(msgspec.Struct, frozen=True):
    key: str
    size: int
    kind: Kind
    modified: float = 0.0


async def list_sources(store: Store, layout: Layout, ref: SessionRef) -> list[Source]:
    """Every object that the fold reads. Raises when the store cannot be listed: an outage is not an empty session."""
    found = [
        Source(info.key, info.size, Kind.EVENTS, info.modified)
        async for info in store.list_all(layout.snapshots_prefix(ref))
        if layout.parse_snapshot_key(info.key, info.size)
    ]
    has_snapshots = bool(found)
    history = layout.history_prefix(ref)
    for folder in (await store.list_folder(history)).folders:
        if is_node_folder(folder):
            found += await _node_sources(store, layout, ref, f"{history}/{folder}")
        elif not has_snapshots:
            prefix = layout.endpoints_prefix(ref)
            found += [Source(i.key, i.size, Kind.ENDPOINT, i.modified) async for i in store.list_all(prefix)]
    return sorted(found, key=lambda source: source.key)


async def _node_sources(store: Store, layout: Layout, ref: SessionRef, node: str) -> list[Source]:
    found = [
        Source(info.key, info.size, Kind.EVENTS, info.modified)
        for folder in ("node_events", "job_events")
        async for info in store.list_all(f"{node}/{folder}")
        if layout.parse_event_key(ref, info.key, info.size)
    ]
    found += [
        Source(info.key, info.size, Kind.EVENT_LOG, info.modified)
        async for info in store.list_all(f"{node}/logs/events")
        if info.key.rpartition("/")[2].startswith("event_") and info.key.endswith(".log")
    ]
    return found


def digest(sources: list[Source]) -> str:
    """Tells whether an index covers exactly these objects."""
    names = "\n".join(f"{source.key} {source.size}" for source in sources)
    return hashlib.sha256(names.encode()).hexdigest()
