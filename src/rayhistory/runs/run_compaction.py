"""Compaction of the run table: summaries in the inbox become rows of a few Parquet files by day and month.

Nothing is deleted before a manifest that replaces it is visible, so a process can be killed at any time. A lease keeps
other servers from doing the same work. If two do it anyway, only one can create the manifest.

New rows become a new part, and `part_merges.py` chooses which parts are merged. So a row is rewritten only a few times,
for any number of sessions.
"""

import asyncio
import logging
import secrets
import tempfile
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import groupby
from pathlib import Path

import msgspec

from rayhistory.errors import IndexDamaged, ObjectNotFound
from rayhistory.index.leases import Leases
from rayhistory.runs.part_merges import common_period, mergeable_parts
from rayhistory.runs.run_inbox import InboxEntry, read_entries
from rayhistory.runs.run_manifest import FENCES, RunManifest, RunPart, day_of, list_generations, publish_run_manifest
from rayhistory.runs.run_parts import MAX_PART_BYTES, MAX_PART_ROWS, FullRow, Identity, write_part
from rayhistory.runs.run_table import RunTable
from rayhistory.storage.bulk_delete import delete_keys

log = logging.getLogger(__name__)

BATCH = 64
"""A new part is written when the inbox has the summaries of this many ended sessions."""
MAX_WAIT_S = 3600.0
"""Maximum waiting time of a summary in the inbox. After it, a part is written even if it has fewer sessions."""
_ORPHAN_AFTER_S = 3600.0


class CompactionReport(msgspec.Struct, frozen=True):
    """The result of one pass of compaction."""

    folded: int = 0
    """Number of summaries that moved from the inbox into parts."""
    written_rows: int = 0
    removed: int = 0
    quarantined: int = 0


class _NextVersion(msgspec.Struct):
    """The next version of the table."""

    parts: list[RunPart]
    written: list[RunPart] = []
    written_rows: int = 0
    quarantined: list[str] = []
    """Keys of damaged objects that were moved to quarantine."""
    obsolete: list[str] = []
    """Keys of objects to delete afterwards.

    These are quarantined objects, inbox entries of removed sessions, and inbox entries that are now in a part.
    """
    removed: int = 0


class RunCompactor:
    def __init__(self, table: RunTable) -> None:
        self._store = table.store
        self._layout = table.layout
        self._table = table
        self._leases = Leases(table.store)

    async def compact(self, removed: AbstractSet[Identity] = frozenset(), *, force: bool = False) -> CompactionReport:
        """Bring the table up to date, unless another server does. With `force`, do not wait for a full batch.

        Rows of `removed` sessions are dropped.
        """
        async with self._leases.hold(self._layout.runs_lease_key()) as is_held:
            return await self._compact(removed, force=force) if is_held else CompactionReport()

    async def _compact(self, removed: AbstractSet[Identity], *, force: bool) -> CompactionReport:
        await self._table.load(max_age_s=0)
        manifest, inbox = self._table.manifest, self._table.inbox
        plan = _NextVersion(parts=list(manifest.parts))
        with tempfile.TemporaryDirectory() as scratch:
            await self._drop_removed(plan, removed, Path(scratch))
            folded = await self._fold_inbox(plan, list(inbox.newest.values()), removed, Path(scratch), force=force)
            await self._merge(plan, Path(scratch))
        changed = plan.parts != manifest.parts or plan.quarantined
        if changed and not await self._publish(manifest, plan):
            return CompactionReport()
        replaced = [entry.key for entry in inbox.replaced if entry.key not in plan.quarantined]
        await delete_keys(self._store, [*plan.obsolete, *replaced])
        if changed:
            await self._clean_up()
        return CompactionReport(folded, plan.written_rows, plan.removed, len(plan.quarantined))

    async def _fold_inbox(
        self,
        plan: _NextVersion,
        entries: list[InboxEntry],
        removed: AbstractSet[Identity],
        scratch: Path,
        *,
        force: bool,
    ) -> int:
        """Write parts with summaries of ended sessions, if there are enough or they have waited long."""
        found = await read_entries(self._store, entries)
        by_key = {entry.key: entry for entry in entries}
        for key, row in found.items():
            if row is None:
                await self._quarantine(plan, key)
        gone = {key for key, row in found.items() if row and row.identity in removed}
        plan.obsolete += gone
        plan.removed += len(gone)
        over = {key: row for key, row in found.items() if row and row.stored.summary.is_over and key not in gone}
        waited = max((time.time() - by_key[key].modified for key in over), default=0.0)
        if not over or not (force or len(over) >= BATCH or waited > MAX_WAIT_S):
            return 0
        for rows in _by_month(over.values()):
            await self._write(plan, common_period(map(_day, rows)), rows, scratch)
        plan.obsolete += over
        return len(over)

    async def _drop_removed(self, plan: _NextVersion, removed: AbstractSet[Identity], scratch: Path) -> None:
        """Rewrite parts that have rows of removed sessions, and drop damaged parts."""
        rows = await self._table.load()
        for part in list(plan.parts):
            gone = removed & self._table.identities(part.name) if removed else frozenset()
            if part.name in rows.damaged:
                await self._quarantine(plan, self._layout.run_part_key(part.name))
                plan.parts.remove(part)
            elif gone:
                plan.removed += len(gone)
                kept = [row for row in await self._table.full_rows(part) if row.identity not in gone]
                await self._replace(plan, [part], kept, part.period, scratch)

    async def _merge(self, plan: _NextVersion, scratch: Path) -> None:
        older = [part for part in plan.parts if part not in plan.written]  # new ones are merged by a later pass
        for parts in mergeable_parts(older, time.time()):
            try:
                rows = [row for part in parts for row in await self._table.full_rows(part)]
            except IndexDamaged:
                continue  # the next pass leaves it out
            await self._replace(plan, parts, _newest(rows), common_period(part.period for part in parts), scratch)

    async def _replace(
        self, plan: _NextVersion, parts: list[RunPart], rows: list[FullRow], period: str, scratch: Path
    ) -> None:
        place = plan.parts.index(parts[0])
        plan.parts = [part for part in plan.parts if part not in parts]
        if rows:
            await self._write(plan, period, rows, scratch, place)

    async def _write(
        self, plan: _NextVersion, period: str, rows: list[FullRow], scratch: Path, place: int | None = None
    ) -> None:
        """Write a part. A part with new rows goes to the end of the list, so that its rows replace older ones.

        `place` is the position of a merged part: that of the first part that it replaces.
        """
        name = f"{period}-{secrets.token_hex(8)}"
        path = scratch / "part"
        details_at, details_size = await asyncio.to_thread(write_part, path, rows)
        part = RunPart(name, period, len(rows), path.stat().st_size, details_at, details_size)
        await self._store.put(self._layout.run_part_key(name), path)
        self._table.add_written(part, rows)
        plan.parts.insert(len(plan.parts) if place is None else place, part)
        plan.written.append(part)
        plan.written_rows += len(rows)

    async def _quarantine(self, plan: _NextVersion, key: str) -> None:
        """Copy a damaged object to the quarantine, for inspection.

        The original is deleted after the next version of the table is published.
        """
        plan.quarantined.append(key)
        plan.obsolete.append(key)
        log.warning("object of the run table is damaged, moving it to quarantine", extra={"key": key})
        try:
            data = await self._store.get_range(key, 0, MAX_PART_BYTES)
        except ObjectNotFound:
            return
        await self._store.put(self._layout.run_quarantine_key(key), data)

    async def _publish(self, manifest: RunManifest, plan: _NextVersion) -> bool:
        quarantined = manifest.quarantined + len(plan.quarantined)
        following = RunManifest(
            generation=manifest.generation + 1, parts=plan.parts, quarantined=quarantined
        )  # fmt: skip
        if await publish_run_manifest(self._store, self._layout, following):
            return True
        await delete_keys(self._store, [self._layout.run_part_key(part.name) for part in plan.written])
        return False

    async def _clean_up(self) -> None:
        """Delete old manifests, and parts that the newest manifest does not list.

        Parts are kept for a while, because a reader may be about to fetch a part that was just replaced.
        """
        old = (await list_generations(self._store, self._layout))[FENCES:]
        await delete_keys(self._store, [self._layout.runs_manifest_key(generation) for generation in old])
        await self._table.load(max_age_s=0)
        used = {part.name for part in self._table.manifest.parts}
        prefix, now = f"{self._layout.runs_prefix()}/parts", time.time()
        orphans = [
            info.key
            async for info in self._store.list_all(prefix)
            if self._layout.parse_run_part_key(info.key) not in used and now - info.modified > _ORPHAN_AFTER_S
        ]
        await delete_keys(self._store, orphans)


def _day(row: FullRow) -> str:
    return day_of(row.stored.summary)


def _by_month(rows: Iterable[FullRow]) -> Iterable[list[FullRow]]:
    for _, group in groupby(sorted(rows, key=_day), key=lambda row: _day(row)[:7]):
        of_month = list(group)
        for start in range(0, len(of_month), MAX_PART_ROWS):
            yield of_month[start : start + MAX_PART_ROWS]


def _newest(rows: list[FullRow]) -> list[FullRow]:
    newest: dict[Identity, FullRow] = {}
    for row in rows:
        other = newest.get(row.identity)
        if other is None or row.generation >= other.generation:
            newest[row.identity] = row
    return list(newest.values())
