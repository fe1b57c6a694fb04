"""The last step of bringing a session in: what makes it exist."""

from typing import TypeVar

import msgspec

from rayhistory import __version__
from rayhistory.errors import BucketNotFound, ObjectNotFound, UsageError
from rayhistory.layout import LARGEST_RECORD, EndRecord, Layout, NodeSeal, SessionRef, StartRecord, read_record
from rayhistory.server.catalogue import RUNNING, Catalogue
from rayhistory.storage import Store

T = TypeVar("T", bound=msgspec.Struct)
IMPORTED, SNAPSHOT = "imported", "snapshot"
"""Reasons of an end that are ours; of sessions with others a collector has spoken, whose records stay as they are."""


async def refuse_if_busy(store: Store, layout: Layout, ref: SessionRef, vanished_after: float) -> None:
    """A session that a collector records, or that is being removed, is not to be written to."""
    catalogue = Catalogue(store, layout, vanished_after)
    try:
        entries = await catalogue.entries()
    except BucketNotFound:
        return  # it is made at the first write
    for entry in entries:
        if entry.ref.identity == ref.identity and catalogue.state(entry) == RUNNING:
            raise UsageError(f"{ref.path} is being recorded by a collector: nothing can be brought in now")
    try:
        await store.head(layout.tombstone_key(ref))
    except ObjectNotFound:
        return
    raise UsageError(f"{ref.path} is being removed from the store: finish that with retention first")


class Origin(msgspec.Struct, frozen=True):
    """What is known of the session when all else is in the store."""

    started_ms: int
    ended_ms: int
    reason: str
    node_id: str = ""
    ray_version: str | None = None
    dashboard_address: str | None = None


async def make_known(store: Store, layout: Layout, ref: SessionRef, origin: Origin, seals: list[NodeSeal]) -> None:
    """Several nodes may bring in parts of one session: the first word about its start stays, the last about its end."""
    for seal in seals:
        await store.put(layout.node_seal_key(ref, seal.node_id), msgspec.json.encode(seal))
    start = await _read(store, layout.start_key(ref), StartRecord)
    end = await _read(store, layout.end_key(ref), EndRecord)
    if start is None or (end and end.reason in (IMPORTED, SNAPSHOT)):
        ended_ms = max(origin.ended_ms, end.ended_ms if end else 0)
        await store.put(
            layout.end_key(ref), msgspec.json.encode(EndRecord(ended_ms, origin.reason, open=origin.reason == SNAPSHOT))
        )
    if start is None:
        start = StartRecord(
            namespace=ref.namespace,
            cluster=ref.cluster,
            session=ref.session,
            started_ms=origin.started_ms,
            node_id=origin.node_id,
            ray_version=origin.ray_version,
            dashboard_address=origin.dashboard_address,
            collector_version=__version__,
        )
        await store.put(layout.start_key(ref), msgspec.json.encode(start))
    await store.put(layout.metadata_key(ref), b"")


async def _read(store: Store, key: str, kind: type[T]) -> T | None:
    try:
        return read_record(await store.get_range(key, 0, LARGEST_RECORD), kind)
    except ObjectNotFound:
        return None
