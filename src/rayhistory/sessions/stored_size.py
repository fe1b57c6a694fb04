"""The size of a session in the store: events, logs, metrics and records, but not the index, which can be rebuilt."""

from rayhistory.concurrency import concurrently
from rayhistory.sessions.keys import Layout
from rayhistory.sessions.ref import SessionRef
from rayhistory.storage import Store

_CONCURRENT_PREFIXES, _CONCURRENT_FOLDERS = 4, 16


async def stored_bytes(store: Store, layout: Layout, ref: SessionRef) -> int:
    """Return the total size of a session's objects. It lists each node, so call it only when a session has ended."""
    trees = (await store.list_folder(layout.own_prefix())).folders
    own = {layout.own_tree_prefix(tree, ref) for tree in trees if layout.is_tree_of_sessions(tree)}
    kuberays = {*map(layout.history_prefix, ref.owner_variants), layout.v1_6_history_prefix(ref)}
    others = {*layout.v1_6_endpoints_prefixes(ref)[1:], layout.legacy_prefix(*ref.identity)}
    prefixes = (own | kuberays | others) - {layout.index_prefix(ref)}
    return sum(await concurrently((_size_below(store, prefix) for prefix in sorted(prefixes)), _CONCURRENT_PREFIXES))


async def _size_below(store: Store, prefix: str) -> int:
    async def size_of(folder: str) -> int:
        return sum([info.size async for info in store.list_all(f"{prefix}/{folder}")])

    listing = await store.list_folder(prefix)
    folders = await concurrently((size_of(folder) for folder in listing.folders), _CONCURRENT_FOLDERS)
    return sum(info.size for info in listing.objects) + sum(folders)
