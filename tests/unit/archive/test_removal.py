"""Removal of a session: everything that is stored about it, and nothing of others."""

import asyncio
from pathlib import Path

import msgspec

from rayhistory.archive.removal import remove_session
from rayhistory.sessions import Tombstone
from rayhistory.storage.local import LocalStore
from support.generated_runs import LAYOUT, announce, generated, ref_of


def test_announced_and_damaged_summaries_of_the_session_alone_are_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    removed, kept = generated(1), generated(2)

    async def work() -> set[str]:
        for each in (removed, kept):
            ref = ref_of(each)
            await store.put(LAYOUT.metadata_key(ref), b"")
            await announce(store, [each])
            await store.put(f"{LAYOUT.run_inbox_prefix()}/{ref.path}/1-ab.json", msgspec.json.encode(each))
            await store.put(LAYOUT.run_quarantine_key(LAYOUT.run_inbox_key(ref, 1, "cd")), b"{")
        assert len([info async for info in store.list_all("")]) == 8
        tombstone = Tombstone(made_ms=0)
        reason = await remove_session(store, LAYOUT, ref_of(removed), tombstone, vanished_after=60, now=2e9)
        assert reason is None
        return {info.key async for info in store.list_all("")}

    left = asyncio.run(work())
    assert len(left) == 4
    assert not [key for key in left if removed.summary.cluster in key]
