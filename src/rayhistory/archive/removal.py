"""Remove a session so that it is never visible incompletely.

First a tombstone is written, which hides the session. Then the keys that make the session visible are deleted, then its
data, and finally the tombstone. Every step is idempotent: any process that finds a tombstone can finish the removal,
and several may do so at once. Only the process that wrote a tombstone may withdraw it, before the first deletion.
"""

from collections.abc import AsyncIterator, Iterable

import msgspec

from rayhistory.archive.session_objects import for_each, session_prefixes
from rayhistory.errors import ObjectExists, ObjectNotFound, StoreUnavailable
from rayhistory.sessions import MAX_RECORD_BYTES, Layout, Owner, SessionRef, Tombstone, read_record
from rayhistory.sessions.records import is_resumed
from rayhistory.storage import Store
from rayhistory.storage.bulk_delete import delete_many

_MAX_DELETE_ROUNDS = 5  # a fold that is under way may write while we delete


async def remove_session(
    store: Store, layout: Layout, ref: SessionRef, tombstone: Tombstone, *, vanished_after: float, now: float
) -> str | None:
    """Remove a session, or return why it must not be removed. `tombstone` is written unless there is one already.

    `now` is the store's time, to check the heartbeat.
    """
    key = layout.tombstone_key(ref)
    try:
        await store.create(key, msgspec.json.encode(tombstone))
        is_ours = True
    except ObjectExists:
        is_ours = False
    reason = await _reason_to_keep(store, layout, ref, now - vanished_after)
    if reason:
        if is_ours:
            await store.delete(key)
        return reason
    owners = {*tombstone.owners, *(await _read_tombstone(store, layout, ref)).owners}
    await _delete(store, layout, ref, owners)
    await store.delete(key)
    return None


async def _read_tombstone(store: Store, layout: Layout, ref: SessionRef) -> Tombstone:
    try:
        record = read_record(await store.get_range(layout.tombstone_key(ref), 0, MAX_RECORD_BYTES), Tombstone)
    except ObjectNotFound:
        record = None
    return record or Tombstone(made_ms=0)


async def list_tombstones(store: Store, layout: Layout) -> list[SessionRef]:
    refs = [layout.parse_pin_or_tombstone_key(info.key) async for info in store.list_all(layout.tombstones_prefix())]
    return [ref for ref in refs if ref]


async def _reason_to_keep(store: Store, layout: Layout, ref: SessionRef, vanished_before: float) -> str | None:
    if await _modified(store, layout.pin_key(ref)):
        return "pinned"
    if await _modified(store, layout.vanished_key(ref)):
        return None
    ended, heartbeat = await _modified(store, layout.end_key(ref)), await _modified(store, layout.alive_key(ref))
    if heartbeat is None or (ended is not None and not is_resumed(heartbeat, ended)):
        return None
    return "running" if heartbeat > vanished_before else None


async def _modified(store: Store, key: str) -> float | None:
    try:
        return (await store.head(key)).modified
    except ObjectNotFound:
        return None


async def _delete(store: Store, layout: Layout, ref: SessionRef, owners: set[Owner]) -> None:
    """Delete all objects of a session, in batches while listing, because a session may have a million objects."""
    prefixes = await session_prefixes(store, layout, ref, sorted(owners))
    await for_each(prefixes.metadata, store.delete)
    for _ in range(_MAX_DELETE_ROUNDS):
        await delete_many(store, _keys(store, prefixes.records))
        data = await delete_many(store, _keys(store, prefixes.data))
        if not data + await delete_many(store, _run_summaries(store, layout, ref)):
            return
    raise StoreUnavailable(f"objects are still being written to {ref.path}: the next retention run removes the rest")


async def _run_summaries(store: Store, layout: Layout, ref: SessionRef) -> AsyncIterator[str]:
    async for key in _keys(store, layout.run_inbox_prefixes(ref)):
        if layout.is_run_summary(ref, key):
            yield key


async def _keys(store: Store, prefixes: Iterable[str]) -> AsyncIterator[str]:
    for prefix in prefixes:
        async for info in store.list_all(prefix):
            yield info.key
