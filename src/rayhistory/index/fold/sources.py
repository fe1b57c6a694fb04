"""The sources of a session: every object that a fold reads."""

import asyncio
import hashlib
from collections.abc import Iterable
from enum import Enum

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.keys import EVENT_FOLDERS, is_event_file, is_node_folder
from rayhistory.storage import Store

_MAX_CONCURRENT_READS = 16


class SourceKind(Enum):
    EVENTS = "events"
    EVENT_LOG = "event log"
    PACKED_LOG = "event log in packs"
    PACKED_EVENTS = "events in packs"
    ENDPOINT = "endpoint"
    SEAL = "seal"
    """The counts of a node's collector. They have no rows."""


_OVERWRITTEN = (SourceKind.ENDPOINT, SourceKind.SEAL)


class Source(msgspec.Struct, frozen=True):
    key: str
    size: int
    kind: SourceKind
    modified: float = 0.0
    start: int = 0
    """The offset to read from. Everything before it is in the previous generation."""

    @property
    def version(self) -> int:
        """Changes whenever the content does. Overwritten objects may keep their size, so their time counts too."""
        return self.size + (int(self.modified * 1000) if self.kind in _OVERWRITTEN else 0)


async def list_sources(store: Store, layout: Layout, ref: SessionRef) -> list[Source]:
    """List every object that the fold reads. Raises if a listing fails: an outage is not an empty session.

    Packs are read first: events that a pack no longer holds are in an object of their own by then.
    """
    packs = await _read_packs(store, layout, ref)
    found = [
        Source(info.key, info.size, SourceKind.EVENTS, info.modified)
        async for info in store.list_all(layout.dashboard_responses_prefix(ref))
        if layout.parse_dashboard_responses_key(info.key, info.size)
    ]
    has_dashboard_responses = bool(found)
    for named in ref.owner_variants:
        history = layout.history_prefix(named)
        for folder in (await store.list_folder(history)).folders:
            if is_node_folder(folder):
                found += await _node_sources(store, layout, named, f"{history}/{folder}")
            elif not has_dashboard_responses:
                prefix = layout.endpoints_prefix(named)
                found += [Source(i.key, i.size, SourceKind.ENDPOINT, i.modified) async for i in store.list_all(prefix)]
    found += await _v1_6_sources(store, layout, ref, has_dashboard_responses=has_dashboard_responses)
    found += [
        Source(info.key, info.size, SourceKind.EVENTS, info.modified)
        for info in (await store.list_folder(layout.legacy_prefix(*ref.identity))).objects
        if info.key == layout.legacy_events_key(ref)
    ]
    found += [
        Source(info.key, info.size, SourceKind.SEAL, info.modified)
        async for info in store.list_all(layout.node_seals_prefix(ref))
    ]
    file_sizes = {source.key: source.size for source in found}
    for node, reader in packs.items():
        found += await _packed_events(store, layout.node_packs_prefix(ref, node), reader)
        found += _packed_logs(layout, ref, node, reader, file_sizes)
    return sorted(found, key=lambda source: source.key)


async def _v1_6_sources(
    store: Store, layout: Layout, ref: SessionRef, *, has_dashboard_responses: bool
) -> list[Source]:
    """List objects of the same session that KubeRay's collectors before v1.7 wrote."""
    prefix = layout.v1_6_history_prefix(ref)
    found = [
        Source(info.key, info.size, SourceKind.EVENTS, info.modified)
        for folder in EVENT_FOLDERS
        async for info in store.list_all(f"{prefix}/{folder}")
        if is_event_file(info.key)
    ]
    logs = layout.v1_6_logs_prefix(ref)
    found += [
        Source(info.key, info.size, SourceKind.EVENT_LOG, info.modified)
        for node in (await store.list_folder(logs)).folders
        async for info in store.list_all(f"{logs}/{node}/events")
        if _is_event_log(f"events/{info.key.rpartition('/')[2]}")
    ]
    endpoints = [] if has_dashboard_responses else layout.v1_6_endpoints_prefixes(ref)
    return found + [
        Source(info.key, info.size, SourceKind.ENDPOINT, info.modified)
        for endpoints_prefix in endpoints
        async for info in store.list_all(endpoints_prefix)
        if not info.key.endswith("/")
    ]


async def _read_packs(store: Store, layout: Layout, ref: SessionRef) -> dict[str, PackReader]:
    limit = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    async def read_node(node: str) -> PackReader:
        reader = PackReader(store, layout.node_packs_prefix(ref, node))
        async with limit:
            await reader.refresh()
        return reader

    folders = (await store.list_folder(layout.packs_prefix(ref))).folders
    nodes = [folder for folder in folders if is_node_folder(folder)]
    return dict(zip(nodes, await asyncio.gather(*map(read_node, nodes)), strict=True))


async def _packed_events(store: Store, prefix: str, reader: PackReader) -> list[Source]:
    """List events that are not in an object of their own yet: the session runs, or the node has vanished.

    The newest pack was written after all of them.
    """
    if not reader.event_streams:
        return []
    try:
        modified = (await store.head(f"{prefix}/{reader.directory.last}")).modified
    except ObjectNotFound:  # the packs are being removed
        modified = 0.0
    return [
        Source(f"{prefix}#{name}", stream.size, SourceKind.PACKED_EVENTS, modified)
        for name, stream in reader.event_streams.items()
    ]


def _packed_logs(
    layout: Layout, ref: SessionRef, node: str, reader: PackReader, file_sizes: dict[str, int]
) -> Iterable[Source]:
    """List event logs that are not in the store as a file, or are longer than that file."""
    packs_prefix = layout.node_packs_prefix(ref, node)
    log_prefixes = (
        *(layout.logs_prefix(named, node) for named in ref.owner_variants),
        layout.v1_6_logs_prefix(ref, node),
    )
    return (
        Source(f"{packs_prefix}#{name}", stream.size, SourceKind.PACKED_LOG)
        for name, stream in reader.files.items()
        if _is_event_log(name) and max(file_sizes.get(f"{prefix}/{name}", 0) for prefix in log_prefixes) < stream.size
    )


def _is_event_log(path: str) -> bool:
    return path.startswith("events/event_") and path.endswith(".log")


async def _node_sources(store: Store, layout: Layout, ref: SessionRef, node_prefix: str) -> list[Source]:
    found = [
        Source(info.key, info.size, SourceKind.EVENTS, info.modified)
        for folder in EVENT_FOLDERS
        async for info in store.list_all(f"{node_prefix}/{folder}")
        if layout.parse_event_key(ref, info.key, info.size)
    ]
    found += [
        Source(info.key, info.size, SourceKind.EVENT_LOG, info.modified)
        async for info in store.list_all(f"{layout.logs_prefix(ref, node_prefix.rpartition('/')[2])}/events")
        if info.key.rpartition("/")[2].startswith("event_") and info.key.endswith(".log")
    ]
    return found


def unread_sources(sources: list[Source], covered: Iterable[tuple[str, int]]) -> list[Source]:
    """Return sources that are new or have changed; of events in packs, only what was appended."""
    read_versions = dict(covered)
    return [
        msgspec.structs.replace(source, start=read_versions.get(source.key, 0))
        if source.kind is SourceKind.PACKED_EVENTS
        else source
        for source in sources
        if source.kind is not SourceKind.SEAL and read_versions.get(source.key) != source.version
    ]


def sources_digest(sources: list[Source]) -> str:
    """Return a digest that is equal if an index covers exactly these objects."""
    versions = "\n".join(f"{source.key} {source.version}" for source in sources)
    return hashlib.sha256(versions.encode()).hexdigest()
