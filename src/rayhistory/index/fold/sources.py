"""What there is to fold in a session: the objects with events, snapshots and event logs."""

import asyncio
import hashlib
from collections.abc import Iterable
from enum import Enum

import msgspec

from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.keys import is_event_file, is_node_folder
from rayhistory.layout.packread import PackReader
from rayhistory.storage import Store

_READS_AT_ONCE = 16


class Kind(Enum):
    EVENTS = "events"
    EVENT_LOG = "event log"
    PACKED_LOG = "event log in packs"
    PACKED_EVENTS = "events in packs"
    ENDPOINT = "endpoint"
    SEAL = "seal"
    """What a node's collector says it has lost."""


_WRITTEN_OVER = (Kind.ENDPOINT, Kind.SEAL)


class Source(msgspec.Struct, frozen=True):
    key: str
    size: int
    kind: Kind
    modified: float = 0.0
    start: int = 0
    """From where it is to be read: what is before has been folded."""

    @property
    def version(self) -> int:
        """Differs when there is something else to read: what is written over may be as long as before."""
        return self.size + (int(self.modified * 1000) if self.kind in _WRITTEN_OVER else 0)


async def list_sources(store: Store, layout: Layout, ref: SessionRef) -> list[Source]:
    """Every object that the fold reads. Raises when the store cannot be listed: an outage is not an empty session.

    Packs are looked at first: events that they hold no more are in an object by then.
    """
    packs = await _packs(store, layout, ref)
    found = [
        Source(info.key, info.size, Kind.EVENTS, info.modified)
        async for info in store.list_all(layout.snapshots_prefix(ref))
        if layout.parse_snapshot_key(info.key, info.size)
    ]
    has_snapshots = bool(found)
    for named in ref.spellings:
        history = layout.history_prefix(named)
        for folder in (await store.list_folder(history)).folders:
            if is_node_folder(folder):
                found += await _node_sources(store, layout, named, f"{history}/{folder}")
            elif not has_snapshots:
                prefix = layout.endpoints_prefix(named)
                found += [Source(i.key, i.size, Kind.ENDPOINT, i.modified) async for i in store.list_all(prefix)]
    found += await _old_sources(store, layout, ref, has_snapshots=has_snapshots)
    found += [
        Source(info.key, info.size, Kind.EVENTS, info.modified)
        for info in (await store.list_folder(layout.noted_prefix(*ref.identity))).objects
        if info.key == layout.noted_events_key(ref)
    ]
    found += [
        Source(info.key, info.size, Kind.SEAL, info.modified)
        async for info in store.list_all(layout.node_seals_prefix(ref))
    ]
    whole = {source.key: source.size for source in found}
    for node, reader in packs.items():
        found += _packed_events(layout.node_packs_prefix(ref, node), reader)
        found += _packed_logs(layout, ref, node, reader, whole)
    return sorted(found, key=lambda source: source.key)


async def _old_sources(store: Store, layout: Layout, ref: SessionRef, *, has_snapshots: bool) -> list[Source]:
    """What KubeRay's collectors before v1.7 wrote of the same session."""
    prefix = layout.old_history_prefix(ref)
    found = [
        Source(info.key, info.size, Kind.EVENTS, info.modified)
        for folder in ("node_events", "job_events")
        async for info in store.list_all(f"{prefix}/{folder}")
        if is_event_file(info.key)
    ]
    logs = layout.old_logs_prefix(ref)
    found += [
        Source(info.key, info.size, Kind.EVENT_LOG, info.modified)
        for node in (await store.list_folder(logs)).folders
        async for info in store.list_all(f"{logs}/{node}/events")
        if _is_event_log(f"events/{info.key.rpartition('/')[2]}")
    ]
    endpoints = [] if has_snapshots else layout.old_endpoints_prefixes(ref)
    return found + [
        Source(info.key, info.size, Kind.ENDPOINT, info.modified)
        for place in endpoints
        async for info in store.list_all(place)
        if not info.key.endswith("/")
    ]


async def _packs(store: Store, layout: Layout, ref: SessionRef) -> dict[str, PackReader]:
    places = asyncio.Semaphore(_READS_AT_ONCE)

    async def of_node(node: str) -> PackReader:
        reader = PackReader(store, layout.node_packs_prefix(ref, node))
        async with places:
            await reader.refresh()
        return reader

    folders = (await store.list_folder(layout.packs_prefix(ref))).folders
    nodes = [folder for folder in folders if is_node_folder(folder)]
    return dict(zip(nodes, await asyncio.gather(*map(of_node, nodes)), strict=True))


def _packed_events(prefix: str, reader: PackReader) -> Iterable[Source]:
    """What is in no object of its own yet: the session runs, or the node has vanished."""
    return (Source(f"{prefix}#{name}", stream.size, Kind.PACKED_EVENTS) for name, stream in reader.events.items())


def _packed_logs(
    layout: Layout, ref: SessionRef, node: str, reader: PackReader, whole: dict[str, int]
) -> Iterable[Source]:
    """Event logs that are not there as whole files, or not as much of them."""
    prefix = layout.node_packs_prefix(ref, node)
    places = (*(layout.logs_prefix(named, node) for named in ref.spellings), layout.old_logs_prefix(ref, node))
    return (
        Source(f"{prefix}#{name}", stream.size, Kind.PACKED_LOG)
        for name, stream in reader.names.items()
        if _is_event_log(name) and max(whole.get(f"{place}/{name}", 0) for place in places) < stream.size
    )


def _is_event_log(path: str) -> bool:
    return path.startswith("events/event_") and path.endswith(".log")


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


def unread(sources: list[Source], covered: Iterable[tuple[str, int]]) -> list[Source]:
    """Sources of rows that are new or have grown; of events in packs, only what has been added since."""
    known = dict(covered)
    return [
        msgspec.structs.replace(source, start=known.get(source.key, 0)) if source.kind is Kind.PACKED_EVENTS else source
        for source in sources
        if source.kind is not Kind.SEAL and known.get(source.key) != source.version
    ]


def digest(sources: list[Source]) -> str:
    """Tells whether an index covers exactly these objects."""
    names = "\n".join(f"{source.key} {source.version}" for source in sources)
    return hashlib.sha256(names.encode()).hexdigest()
