"""Compact the packs of all nodes of a session."""

from pathlib import Path

from rayhistory.packs.pack_compaction import CompactionResult, compact_node
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.kuberay_keys import is_node_folder
from rayhistory.storage import Store
from rayhistory.storage.bulk_delete import delete_keys


async def compact_session(
    store: Store, layout: Layout, ref: SessionRef, *, min_packs: int, scratch: Path | None = None
) -> CompactionResult:
    """Compact the nodes one after another. Nodes with fewer than `min_packs` packs to compact are skipped."""

    async def delete(keys: list[str]) -> None:
        await delete_keys(store, keys)

    total = CompactionResult()
    for node in filter(is_node_folder, (await store.list_folder(layout.packs_prefix(ref))).folders):
        prefix = layout.node_packs_prefix(ref, node)
        done = await compact_node(store, prefix, delete, min_packs=min_packs, scratch=scratch)
        total.packs += done.packs
        total.objects += done.objects
        total.copied_bytes += done.copied_bytes
    return total
