"""Register sessions that no collector recorded, by writing the records that make them visible."""

from typing import TypeVar

import msgspec

from rayhistory import __version__
from rayhistory.errors import BucketNotFound, ObjectNotFound, UsageError
from rayhistory.sessions import MAX_RECORD_BYTES, EndRecord, Layout, NodeSeal, SessionRef, StartRecord, read_record
from rayhistory.sessions.catalog import RUNNING, SessionCatalog
from rayhistory.storage import Store

T = TypeVar("T", bound=msgspec.Struct)
IMPORTED, SNAPSHOT = "imported", "snapshot"
"""End reasons that only registration writes.

A record with another reason was written by a collector, and is not changed.
"""


async def require_writable(store: Store, layout: Layout, ref: SessionRef, vanished_after: float) -> None:
    """Raise UsageError if a collector is recording the session, or if the session is being removed."""
    catalog = SessionCatalog(store, layout, vanished_after)
    try:
        entries = await catalog.entries()
    except BucketNotFound:
        return  # the first write creates the bucket
    for entry in entries:
        if entry.ref.identity == ref.identity and catalog.state(entry) == RUNNING:
            raise UsageError(f"{ref.path} is being recorded by a collector: try again when the session has ended")
    try:
        await store.head(layout.tombstone_key(ref))
    except ObjectNotFound:
        return
    raise UsageError(
        f"{ref.path} is being removed from the store: run `rayhistory retention` with its limits and --yes to complete "
        "the removal, then try again"
    )


class SessionOrigin(msgspec.Struct, frozen=True):
    """Start, end and source of a session to register."""

    started_ms: int
    ended_ms: int
    reason: str
    node_id: str = ""
    ray_version: str | None = None
    dashboard_address: str | None = None


async def register_session(
    store: Store, layout: Layout, ref: SessionRef, origin: SessionOrigin, seals: list[NodeSeal]
) -> None:
    """Write the records of a session, after its data.

    Several nodes may import data of one session. The first start record and the latest end record are kept.
    """
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
            stored_ms=origin.started_ms,  # an import is as old as its session, not the newest one of its cluster
        )
        await store.put(layout.first_stored_key(ref, origin.started_ms), b"")
        await store.put(layout.start_key(ref), msgspec.json.encode(start))
    await store.put(layout.metadata_key(ref), b"")


async def _read(store: Store, key: str, kind: type[T]) -> T | None:
    try:
        return read_record(await store.get_range(key, 0, MAX_RECORD_BYTES), kind)
    except ObjectNotFound:
        return None
