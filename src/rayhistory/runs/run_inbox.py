"""The inbox of the run table: new summaries that are in no part yet."""

import asyncio

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.runs.run_parts import FullRow, Identity
from rayhistory.runs.session_summary import MAX_SUMMARY_BYTES, StoredSummary, decode_summary
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import ObjectInfo, Store

MAX_INBOX = 20_000
_CONCURRENT_READS = 32


class InboxEntry(msgspec.Struct, frozen=True):
    ref: SessionRef
    generation: int
    key: str
    size: int
    modified: float

    @property
    def order(self) -> tuple[int, float, str]:
        return self.generation, self.modified, self.key


class Inbox(msgspec.Struct, frozen=True):
    """The newest entry of each session, and the entries that it replaces."""

    newest: dict[Identity, InboxEntry]
    replaced: list[InboxEntry]


async def list_inbox(store: Store, layout: Layout) -> Inbox:
    newest: dict[Identity, InboxEntry] = {}
    replaced = []
    async for info in store.list_all(layout.run_inbox_prefix()):
        entry = _entry(layout, info)
        if entry is None:
            continue
        other = newest.get(entry.ref.identity)
        if other is None and len(newest) >= MAX_INBOX:
            break
        if other is not None:
            replaced.append(min(entry, other, key=lambda each: each.order))
        newest[entry.ref.identity] = entry if other is None else max(entry, other, key=lambda each: each.order)
    return Inbox(newest, replaced)


def _entry(layout: Layout, info: ObjectInfo) -> InboxEntry | None:
    parsed = layout.parse_run_inbox_key(info.key)
    return InboxEntry(parsed[0], parsed[1], info.key, info.size, info.modified) if parsed else None


async def read_entries(store: Store, entries: list[InboxEntry]) -> dict[str, FullRow | None]:
    """Return the rows by key; None for damaged ones. Entries that were removed in the meantime are left out."""
    slots = asyncio.Semaphore(_CONCURRENT_READS)
    found: dict[str, FullRow | None] = {}

    async def read(entry: InboxEntry) -> None:
        async with slots:
            try:
                data = await store.get_range(entry.key, 0, MAX_SUMMARY_BYTES + 1)
            except ObjectNotFound:
                return
        stored = decode_summary(data)
        found[entry.key] = FullRow(entry.generation, stored) if stored and _is_of(stored, entry) else None

    await asyncio.gather(*map(read, entries))
    return found


def _is_of(stored: StoredSummary, entry: InboxEntry) -> bool:
    """Return whether a summary belongs to the session of its key. The key decides who may see it."""
    return stored.summary.identity == entry.ref.identity
