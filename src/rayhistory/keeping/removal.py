"""Removing a session so that nobody ever sees a half of it.

A tombstone comes first, which hides the session; then go the keys that make it exist, then its data, and the tombstone
last. Every step can be repeated, so whoever finds a tombstone finishes what somebody else has begun, and several may do
so at once. Only the one who made a tombstone may take it back, and only before anything is deleted.
"""

import time

import msgspec

from rayhistory.errors import ObjectExists, ObjectNotFound, StoreUnavailable
from rayhistory.keeping.objects import each, objects_below, trees
from rayhistory.layout import LARGEST_RECORD, Layout, Owner, SessionRef, Tombstone, read_record
from rayhistory.storage import Store

_ROUNDS = 5  # somebody may write while we delete: a fold that was under way


async def remove(
    store: Store, layout: Layout, ref: SessionRef, tombstone: Tombstone, *, vanished_after: float
) -> str | None:
    """Removes the session; otherwise says why it must stay. Given the tombstone as it would be if there were none."""
    key = layout.tombstone_key(ref)
    try:
        await store.create(key, msgspec.json.encode(tombstone))
        ours = True
    except ObjectExists:
        ours = False
    reason = await _must_stay(store, layout, ref, vanished_after)
    if reason:
        if ours:
            await store.delete(key)
        return reason
    owners = {*tombstone.owners, *(await read_tombstone(store, layout, ref)).owners}
    await _delete(store, layout, ref, owners)
    await store.delete(key)
    return None


async def read_tombstone(store: Store, layout: Layout, ref: SessionRef) -> Tombstone:
    try:
        found = read_record(await store.get_range(layout.tombstone_key(ref), 0, LARGEST_RECORD), Tombstone)
    except ObjectNotFound:
        found = None
    return found or Tombstone(made_ms=0)


async def tombstones(store: Store, layout: Layout) -> list[SessionRef]:
    found = [layout.parse_mark_key(info.key) async for info in store.list_all(layout.tombstones_prefix())]
    return [ref for ref in found if ref]


async def _must_stay(store: Store, layout: Layout, ref: SessionRef, vanished_after: float) -> str | None:
    if await _there(store, layout.pin_key(ref)):
        return "it is pinned"
    if await _there(store, layout.end_key(ref)) or await _there(store, layout.vanished_key(ref)):
        return None
    try:
        alive = await store.head(layout.alive_key(ref))
    except ObjectNotFound:
        return None
    return "it runs" if time.time() - alive.modified < vanished_after else None


async def _there(store: Store, key: str) -> bool:
    try:
        await store.head(key)
    except ObjectNotFound:
        return False
    return True


async def _delete(store: Store, layout: Layout, ref: SessionRef, owners: set[Owner]) -> None:
    found = await trees(store, layout, ref, sorted(owners))
    await each(found.metadata, store.delete)
    for _ in range(_ROUNDS):
        await each([info.key for info in await objects_below(store, found.records)], store.delete)
        left = await objects_below(store, found.data)
        if not left:
            return
        await each([info.key for info in left], store.delete)
    raise StoreUnavailable(f"{ref.path}: somebody still writes to it; what is left goes with the next run")
