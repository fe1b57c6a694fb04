"""Build the products of indexed sessions that are not in the run table, in the background.

If the server indexes a session, it also starts to build the session's products. Commands that index a session
only to read it build no products, and older releases did not build all of them.
"""

import asyncio
import logging

import msgspec

from rayhistory.errors import RayHistoryError, StoreError
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.runs.run_maintenance import RunMaintenance
from rayhistory.runs.run_parts import Identity
from rayhistory.runs.run_table import RunRows, RunTable
from rayhistory.runs.summary_product import NAME
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog

log = logging.getLogger(__name__)

_TABLE_MAX_AGE_S = 10.0
_RETRY_AFTER_S = 60.0


class _WaitingSession(msgspec.Struct, frozen=True):
    entry: CatalogEntry
    generation: int


class ProductBacklog:
    """Builds products of one session at a time: the newest first, and namespaces take turns.

    The run table shows which sessions need them, so sessions that have all products cost no request.
    """

    def __init__(
        self, table: RunTable, catalog: SessionCatalog, builder: IndexBuilder, maintenance: RunMaintenance
    ) -> None:
        self._table = table
        self._catalog = catalog
        self._builder = builder
        self._maintenance = maintenance
        self._waiting: dict[Identity, _WaitingSession] = {}
        self._added = asyncio.Event()
        self._last_turns: dict[str, int] = {}
        """The number of the turn that each namespace had last."""
        self._turn = 0

    def add(self, entry: CatalogEntry, generation: int) -> None:
        """Add an ended session, whose tables have this generation. Its missing products are built later."""
        self._waiting[entry.ref.identity] = _WaitingSession(entry, generation)
        self._added.set()

    async def run(self) -> None:
        """Build products until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            try:
                await self.build_all()
            except RayHistoryError as error:
                log.warning("cannot build products of indexed sessions, retrying later", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY_AFTER_S)
                self._added.set()
            except Exception:
                log.exception("unexpected error while building products, waiting for the next indexed session")

    async def build_all(self) -> None:
        """Build the products of all waiting sessions that need them. Raise StoreError if the store fails."""
        while session := self.next_session(await self._table.load(max_age_s=_TABLE_MAX_AGE_S)):
            try:
                await self._build(session.entry)
            except StoreError:
                self._waiting.setdefault(session.entry.ref.identity, session)
                raise
            except RayHistoryError as error:
                fields = {"session": session.entry.ref.path, "reason": str(error)}
                log.warning("building products failed, retrying when the session is checked again", extra=fields)

    def next_session(self, rows: RunRows) -> _WaitingSession | None:
        """Remove and return the next session that needs products; None if there is none."""
        self._waiting = {
            identity: session
            for identity, session in self._waiting.items()
            if rows.generations.get(identity) != session.generation
        }
        if not self._waiting:
            return None
        namespace = min({identity[0] for identity in self._waiting}, key=lambda name: self._last_turns.get(name, 0))
        of_namespace = [identity for identity in self._waiting if identity[0] == namespace]
        self._turn += 1
        self._last_turns[namespace] = self._turn
        return self._waiting.pop(max(of_namespace, key=lambda identity: self._waiting[identity].entry.appeared))

    async def _build(self, entry: CatalogEntry) -> None:
        tables = await self._builder.existing(entry.ref, await self._catalog.closing(entry))
        if tables is None:  # removed or resumed meanwhile
            return
        built = await self._builder.products.build(entry.ref, tables)
        if NAME not in {each.product for each in built}:
            # A copied session has its products, but its row stayed in the other store.
            await self._maintenance.restore_if_missing(entry)
