"""Find sessions that a retention policy may apply to. For each of them, all objects are listed."""

import logging

from rayhistory.archive.pins import list_pins
from rayhistory.archive.retention import DAY_S, RetentionCandidate, RetentionPolicy
from rayhistory.archive.session_objects import SessionIdentity, for_each, session_prefixes
from rayhistory.errors import InvalidKeyInStore
from rayhistory.index.manifest import Manifest, read_latest_manifest
from rayhistory.sessions import Layout, Owner
from rayhistory.sessions.catalog import RUNNING, VANISHED, CatalogEntry, SessionCatalog
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_CONCURRENT_SESSIONS = 8


class RetentionScan:
    """Finds candidates for retention.

    `now` is the store's time. Only the store's clock is used, because other clocks may be wrong.
    """

    def __init__(
        self, store: Store, layout: Layout, catalog: SessionCatalog, vanished_after: float, now: float
    ) -> None:
        self._store = store
        self._layout = layout
        self._catalog = catalog
        self._vanished_after = vanished_after
        self._now = now

    async def candidates(
        self, policy: RetentionPolicy, owners: dict[SessionIdentity, list[Owner]]
    ) -> tuple[list[RetentionCandidate], int]:
        """Return the candidates, oldest first, and the number of all sessions."""
        pins = await list_pins(self._store, self._layout)
        entries = [e for e in await self._catalog.entries() if policy.namespace in (None, e.ref.namespace)]
        found: list[RetentionCandidate] = []

        async def examine(entry: CatalogEntry) -> None:
            identity = entry.ref.identity
            try:
                found.append(await self._candidate(entry, owners.get(identity, []), is_pinned=identity in pins))
            except InvalidKeyInStore as error:
                fields = {"session": entry.ref.path, "reason": str(error)}
                log.warning("cannot list a session because of an invalid key, keeping it", extra=fields)

        concerned = [entry for entry in entries if self._is_concerned(entry, policy, len(entries))]
        await for_each(concerned, examine, _CONCURRENT_SESSIONS)
        return sorted(found, key=lambda candidate: (candidate.started, candidate.ref)), len(entries)

    async def _candidate(self, entry: CatalogEntry, owners: list[Owner], *, is_pinned: bool) -> RetentionCandidate:
        state = self._catalog.state(entry)
        prefixes = await session_prefixes(self._store, self._layout, entry.ref, owners)
        index = self._layout.index_prefix(entry.ref) + "/"
        manifest = await read_latest_manifest(self._store, self._layout, entry.ref)
        size, rebuildable, last_write = 0, 0, 0.0
        for prefix in (*prefixes.records, *prefixes.data):
            async for info in self._store.list_all(prefix):
                if info.key.startswith(index):
                    rebuildable += info.size
                else:
                    size += info.size
                    last_write = max(last_write, info.modified)
        index_size = min(manifest.size, rebuildable) if manifest else 0
        return RetentionCandidate(
            ref=entry.ref,
            state=state,
            started=entry.appeared,
            ended=await self._ended(entry, state, last_write),
            size=size + rebuildable,
            index_size=index_size,
            derived_size=rebuildable - index_size,
            last_write=last_write,
            failed=True if state == VANISHED else _failed(manifest),
            pinned=is_pinned,
            idle_after=self._vanished_after if entry.recorded else DAY_S,
        )

    async def _ended(self, entry: CatalogEntry, state: str, last_write: float) -> float:
        """Return the time when the end record was stored.

        For a session without records, return the time of its last write.
        """
        if state == RUNNING:
            return self._now
        return await self._catalog.ended_at(entry) or last_write

    def _is_concerned(self, entry: CatalogEntry, policy: RetentionPolicy, sessions: int) -> bool:
        if policy.max_bytes is not None or (policy.max_sessions is not None and sessions > policy.max_sessions):
            return True
        ages = [age for age in (policy.max_age, policy.failed_max_age) if age is not None]
        return bool(ages) and self._now - entry.appeared > min(ages)


def _failed(manifest: Manifest | None) -> bool | None:
    return bool(manifest.counts.jobs.get("FAILED")) if manifest and manifest.closing else None
