"""Pins, which exclude sessions from retention."""

from rayhistory.archive.session_objects import SessionIdentity
from rayhistory.errors import ObjectNotFound, UsageError
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import Store


async def pin(store: Store, layout: Layout, ref: SessionRef) -> None:
    """Pin a session.

    Check for a tombstone before and after writing the pin, because a removal writes its tombstone before it checks for
    pins.
    """
    await _refuse_if_removed(store, layout, ref)
    await store.put(layout.pin_key(ref), b"")
    try:
        await _refuse_if_removed(store, layout, ref)
    except UsageError:
        await unpin(store, layout, ref)
        raise


async def unpin(store: Store, layout: Layout, ref: SessionRef) -> None:
    await store.delete(layout.pin_key(ref))


async def list_pins(store: Store, layout: Layout) -> set[SessionIdentity]:
    refs = [layout.parse_pin_or_tombstone_key(info.key) async for info in store.list_all(layout.pins_prefix())]
    return {ref.identity for ref in refs if ref}


async def _refuse_if_removed(store: Store, layout: Layout, ref: SessionRef) -> None:
    try:
        await store.head(layout.tombstone_key(ref))
    except ObjectNotFound:
        return
    raise UsageError(f"{ref.path} is being removed and cannot be pinned")
