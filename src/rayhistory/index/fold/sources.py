"""The sources of a session: every object that a fold reads."""

import hashlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from enum import Enum
from typing import Any

import msgspec

from rayhistory.concurrency import concurrently
from rayhistory.errors import ObjectNotFound
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import MAX_RECORD_BYTES, Layout, NodeSeal, SessionRef, read_record
from rayhistory.sessions.kuberay_keys import EVENT_FOLDERS, is_event_file, is_node_folder
from rayhistory.storage import ObjectInfo, Store

_MAX_CONCURRENT_READS = 32


class SourceKind(Enum):
    EVENTS = "events"
    EVENT_LOG = "event log"
    PACKED_LOG = "event log in packs"
    PACKED_EVENTS = "events in packs"
    ENDPOINT = "endpoint"
    SEAL = "seal"
    """Kind of a source that has the counts of a node's collector, and no rows."""


_OVERWRITTEN = (SourceKind.ENDPOINT, SourceKind.SEAL)
READ_WHOLE = (SourceKind.EVENT_LOG, SourceKind.PACKED_LOG, SourceKind.ENDPOINT)
MAX_WHOLE_BYTES = 128 << 20
"""The maximum size of a line, array of events, event log or dashboard response, which are held in memory as a whole."""


class Source(msgspec.Struct, frozen=True):
    key: str
    size: int
    kind: SourceKind
    modified: float = 0.0
    start: int = 0
    """The offset to read from. The previous generation covers the bytes before it."""
    pack: str = ""
    """For a source in packs: the newest pack at the time of the listing, so that the reader need not list packs."""

    @property
    def version(self) -> int:
        """A number that changes when the content changes.

        It is the size. For objects that are overwritten and may keep their size, the modification time is added.
        """
        return self.size + (int(self.modified * 1000) if self.kind in _OVERWRITTEN else 0)

    @property
    def fetched_size(self) -> int:
        """The number of bytes that a fold fetches.

        Logs that are too large are read up to a limit; responses that are too large are not read.
        """
        if self.kind is SourceKind.ENDPOINT and self.size > MAX_WHOLE_BYTES:
            return 0
        return min(self.size, MAX_WHOLE_BYTES) if self.kind in READ_WHOLE else self.size


async def list_sources(store: Store, layout: Layout, ref: SessionRef) -> list[Source]:
    """List every object that the fold reads.

    Raise an error if a listing fails, because an outage is not an empty session.
    """
    packs: dict[str, PackReader] = {}
    found = await _SessionPrefixes(store, layout, ref).sources(packs)
    file_sizes = {source.key: source.size for source in found}
    for node, reader in packs.items():
        found += _packed_events(layout.node_packs_prefix(ref, node), reader)
        found += _packed_logs(layout, ref, node, reader, file_sizes)
    return sorted(found, key=lambda source: source.key)


_Call = Coroutine[Any, Any, list[Source]]


class _SessionPrefixes:
    """Lists the objects of a session, many prefixes concurrently."""

    def __init__(self, store: Store, layout: Layout, ref: SessionRef) -> None:
        self._store = store
        self._layout = layout
        self._ref = ref

    async def sources(self, packs: dict[str, PackReader]) -> list[Source]:
        """Return the objects, and fill `packs` with the pack readers of nodes.

        Events are listed after the packs: events that have left the packs are then in event objects. KubeRay's stored
        endpoints are used only if there are no dashboard responses.
        """
        first = [self._dashboard_responses(), self._read_packs(packs), self._seals(), self._legacy(), self._v1_6_logs()]
        groups = await concurrently(first, len(first))
        variants = self._ref.owner_variants
        nodes = dict(zip(variants, await concurrently(map(self._nodes, variants), len(variants)), strict=True))
        after = (self._events(nodes), () if groups[0] else self._endpoints())
        groups += await concurrently((call for calls in after for call in calls), _MAX_CONCURRENT_READS)
        return [source for group in groups for source in group]

    async def _read_packs(self, packs: dict[str, PackReader]) -> list[Source]:
        """Read the pack directories of all nodes into `packs`. Return no sources: `sources` lists them later."""

        async def read_node(node: str) -> None:
            packs[node] = PackReader(self._store, self._layout.node_packs_prefix(self._ref, node))
            await packs[node].refresh()

        folders = (await self._store.list_folder(self._layout.packs_prefix(self._ref))).folders
        await concurrently((read_node(folder) for folder in folders if is_node_folder(folder)), _MAX_CONCURRENT_READS)
        return []

    async def _nodes(self, named: SessionRef) -> list[str]:
        folders = (await self._store.list_folder(self._layout.history_prefix(named))).folders
        return list(filter(is_node_folder, folders))

    async def _list(
        self, prefix: str, kind: SourceKind, is_source: Callable[[ObjectInfo], object] = bool
    ) -> list[Source]:
        return [
            Source(info.key, info.size, kind, info.modified)
            async for info in self._store.list_all(prefix)
            if is_source(info)
        ]

    async def _dashboard_responses(self) -> list[Source]:
        prefix = self._layout.dashboard_responses_prefix(self._ref)
        parse = self._layout.parse_dashboard_responses_key
        return await self._list(prefix, SourceKind.EVENTS, lambda info: parse(info.key, info.size))

    async def _seals(self) -> list[Source]:
        return await self._list(self._layout.node_seals_prefix(self._ref), SourceKind.SEAL)

    async def _legacy(self) -> list[Source]:
        listing = await self._store.list_folder(self._layout.legacy_prefix(*self._ref.identity))
        return [
            Source(info.key, info.size, SourceKind.EVENTS, info.modified)
            for info in listing.objects
            if info.key == self._layout.legacy_events_key(self._ref)
        ]

    def _events(self, nodes: dict[SessionRef, list[str]]) -> Iterator[_Call]:
        """Yield the calls that list the events and event logs of every node."""
        for named, node in ((named, node) for named, folders in nodes.items() for node in folders):
            for folder in EVENT_FOLDERS:
                yield self._node_events(named, f"{self._layout.history_prefix(named)}/{node}/{folder}")
            logs = f"{self._layout.logs_prefix(named, node)}/events"
            yield self._list(logs, SourceKind.EVENT_LOG, _is_event_log_object)
        # objects of the same session that KubeRay's collectors before v1.7 wrote
        for folder in EVENT_FOLDERS:
            prefix = f"{self._layout.v1_6_history_prefix(self._ref)}/{folder}"
            yield self._list(prefix, SourceKind.EVENTS, lambda info: is_event_file(info.key))

    async def _node_events(self, named: SessionRef, prefix: str) -> list[Source]:
        parse = self._layout.parse_event_key
        return await self._list(prefix, SourceKind.EVENTS, lambda info: parse(named, info.key, info.size))

    async def _v1_6_logs(self) -> list[Source]:
        logs = self._layout.v1_6_logs_prefix(self._ref)
        nodes = (
            self._list(f"{logs}/{node}/events", SourceKind.EVENT_LOG, _is_event_log_object)
            for node in (await self._store.list_folder(logs)).folders
        )
        return [source for group in await concurrently(nodes, _MAX_CONCURRENT_READS) for source in group]

    def _endpoints(self) -> Iterator[_Call]:
        prefixes = [self._layout.endpoints_prefix(named) for named in self._ref.owner_variants]
        for prefix in (*prefixes, *self._layout.v1_6_endpoints_prefixes(self._ref)):
            yield self._list(prefix, SourceKind.ENDPOINT, lambda info: not info.key.endswith("/"))


def _packed_events(prefix: str, reader: PackReader) -> Iterable[Source]:
    """List events that are not in event objects yet, because the session runs or the node has vanished.

    As their modification time, use that of the newest pack, which was written after all of them.
    """
    return (
        Source(f"{prefix}#{name}", stream.size, SourceKind.PACKED_EVENTS, reader.modified, pack=reader.directory.last)
        for name, stream in reader.event_streams.items()
    )


def _packed_logs(
    layout: Layout, ref: SessionRef, node: str, reader: PackReader, file_sizes: dict[str, int]
) -> Iterable[Source]:
    """List event logs that are not in the store as a file, or are longer in the packs."""
    packs_prefix = layout.node_packs_prefix(ref, node)
    log_prefixes = (
        *(layout.logs_prefix(named, node) for named in ref.owner_variants),
        layout.v1_6_logs_prefix(ref, node),
    )
    return (
        Source(f"{packs_prefix}#{name}", stream.size, SourceKind.PACKED_LOG, pack=reader.directory.last)
        for name, stream in reader.files.items()
        if _is_event_log(name) and max(file_sizes.get(f"{prefix}/{name}", 0) for prefix in log_prefixes) < stream.size
    )


def _is_event_log_object(info: ObjectInfo) -> bool:
    return _is_event_log(f"events/{info.key.rpartition('/')[2]}")


def _is_event_log(path: str) -> bool:
    return path.startswith("events/event_") and path.endswith(".log")


def unread_sources(sources: list[Source], covered: Iterable[tuple[str, int]]) -> list[Source]:
    """Return sources that are new or have changed. For events in packs, return only the appended bytes."""
    read_versions = dict(covered)
    return [
        msgspec.structs.replace(source, start=read_versions.get(source.key, 0))
        if source.kind is SourceKind.PACKED_EVENTS
        else source
        for source in sources
        if source.kind is not SourceKind.SEAL and read_versions.get(source.key) != source.version
    ]


def sources_digest(sources: list[Source]) -> str:
    """Return a digest of the names and versions of sources. An index with the same digest covers exactly these."""
    versions = "\n".join(f"{source.key} {source.version}" for source in sources)
    return hashlib.sha256(versions.encode()).hexdigest()


async def read_seals(store: Store, sources: list[Source]) -> list[NodeSeal]:
    """Return the event counts of the nodes' collectors, from the seals that are stored."""

    async def read(source: Source) -> NodeSeal | None:
        try:
            return read_record(await store.get_range(source.key, 0, MAX_RECORD_BYTES), NodeSeal)
        except ObjectNotFound:
            return None

    seals = (read(source) for source in sources if source.kind is SourceKind.SEAL)
    return [seal for seal in await concurrently(seals, _MAX_CONCURRENT_READS) if seal]
