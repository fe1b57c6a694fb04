"""Pins: sessions that retention leaves alone for ever."""

from rayhistory.errors import ObjectNotFound, UsageError
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage import Store


async def pin(store: Store, layout: Layout, ref: SessionRef) -> None:
    """Looks for a tombstone on both sides of the write, as a removal looks for the pin after its own."""
    await _refuse_if_going(store, layout, ref)
    await store.put(layout.pin_key(ref), b"")
    try:
        await _refuse_if_going(store, layout, ref)
    except UsageError:
        await unpin(store, layout, ref)
        raise


async def unpin(store: Store, layout: Layout, ref: SessionRef) -> None:
    await store.delete(layout.pin_key(ref))


async def pinned(store: Store, layout: Layout) -> set[tuple[str, str, str]]:
    found = [layout.parse_mark_key(info.key) async for info in store.list_all(layout.pins_prefix())]
    return {ref.identity for ref in found if ref}


async def _refuse_if_going(store: Store, layout: Layout, ref: SessionRef) -> None:
    try:
        await store.head(layout.tombstone_key(ref))
    except ObjectNotFound:
        return
    raise UsageError(f"{ref.path} is being removed and cannot be pinned")
