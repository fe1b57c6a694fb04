"""Keep the run table up to date in the background: compaction, removed sessions, and missing summaries."""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection

from rayhistory.errors import RayHistoryError
from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.lru import LruCache
from rayhistory.runs.run_compaction import BATCH, CompactionReport, RunCompactor
from rayhistory.runs.run_parts import Identity
from rayhistory.runs.run_table import RunTable
from rayhistory.runs.session_summary import decode_summary
from rayhistory.runs.summary_product import FILE, NAME
from rayhistory.sessions.catalog import RUNNING, CatalogEntry, SessionCatalog

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 30.0
_FULL_PASS_EVERY = 20
"""Number of polls from one full pass to the next. A full pass runs even if nothing is new."""
_MAX_RESTORED = 500
_CONCURRENT_READS = 8
_CHECKED = 50_000


class RunMaintenance:
    """Compacts the run table of a store, and restores missing rows."""

    def __init__(
        self, table: RunTable, catalog: SessionCatalog, products: ProductBuilder, *, keep_removed: bool
    ) -> None:
        self._store = table.store
        self._layout = table.layout
        self._table = table
        self._catalog = catalog
        self._products = products
        self._keep_removed = keep_removed
        self._compactor = RunCompactor(table)
        self._checked: LruCache[Identity, float | None] = LruCache(_CHECKED)
        """Sessions without a summary, and when their end record was stored."""

    async def run(self, poll_interval_s: float = _POLL_INTERVAL_S) -> None:
        """Maintain the run table until cancelled."""
        polls = 0
        while True:
            try:
                if polls % _FULL_PASS_EVERY == 0:
                    await self.restore()
                if polls % _FULL_PASS_EVERY == 0 or await self._is_worthwhile():
                    await self.compact()
            except RayHistoryError as error:
                log.warning("maintenance of the run table failed, retrying later", extra={"reason": str(error)})
            except Exception:
                log.exception("unexpected error in the maintenance of the run table, retrying later")
            polls += 1
            await asyncio.sleep(poll_interval_s)

    async def compact(self, *, force: bool = False) -> CompactionReport:
        """Compact once. Rows of removed sessions are dropped, unless `--keep-runs` is set."""
        if self._keep_removed:
            return await self._compactor.compact(force=force)
        known = set((await self._table.load(max_age_s=0)).summaries)
        # An older list of sessions lacks those that were announced since, on this server or another.
        existing = {entry.ref.identity for entry in await self._catalog.entries_since(time.monotonic())}
        gone = known - existing
        return await self._compactor.compact(gone, force=force)

    async def restore(self) -> int:
        """Add stored summaries that are not in the table to its inbox, such as those of copied sessions.

        Return their number.
        """
        rows = await self._table.load(max_age_s=0)
        entries = [entry for entry in await self._catalog.entries() if self._is_missing(entry, rows.summaries.keys())]
        slots = asyncio.Semaphore(_CONCURRENT_READS)

        async def restore_one(entry: CatalogEntry) -> bool:
            async with slots:
                return await self._restore(entry)

        return sum(await asyncio.gather(*map(restore_one, entries[:_MAX_RESTORED])))

    async def restore_if_missing(self, entry: CatalogEntry) -> None:
        """Add the stored summary of one session to the inbox of the table, unless the table has it."""
        rows = await self._table.load(max_age_s=0)
        if entry.ref.identity not in rows.summaries:
            await self._restore(entry)

    def _is_missing(self, entry: CatalogEntry, known: Collection[Identity]) -> bool:
        identity = entry.ref.identity
        if identity in known or self._catalog.state(entry) == RUNNING:
            return False
        return identity not in self._checked or self._checked.get(identity) != entry.end_stored

    async def _restore(self, entry: CatalogEntry) -> bool:
        opened = await self._products.stored(entry.ref, NAME)
        if opened is None:
            self._checked.put(entry.ref.identity, entry.end_stored)
            return False
        try:
            data = await asyncio.to_thread((await opened.file(FILE)).read_bytes)
        except (RayHistoryError, OSError):
            return False
        stored = decode_summary(data)
        if stored is None or stored.summary.identity != entry.ref.identity:
            return False
        key = self._layout.run_inbox_key(entry.ref, opened.manifest.tables_generation, secrets.token_hex(4))
        await self._store.put(key, data)
        return True

    async def _is_worthwhile(self) -> bool:
        """Return whether a compaction is due.

        It is due for a full batch in the inbox, replaced entries, damaged parts, and rows of removed sessions.
        """
        rows = await self._table.load()
        inbox = self._table.inbox
        if len(inbox.newest) >= BATCH or inbox.replaced or rows.damaged:
            return True
        if self._keep_removed:
            return False
        existing = {entry.ref.identity for entry in await self._catalog.entries()}
        return any(identity not in existing for identity in rows.summaries)
