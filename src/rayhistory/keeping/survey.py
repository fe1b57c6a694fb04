"""The facts that retention decides on, of as few sessions as possible: each costs a listing of all its objects."""

import time

from rayhistory.index.manifest import read_latest
from rayhistory.keeping.objects import Identity, each, objects_below, trees
from rayhistory.keeping.pins import pinned
from rayhistory.keeping.retention import DAY, Facts, Rules
from rayhistory.layout import Layout, Owner
from rayhistory.server.catalogue import RUNNING, VANISHED, Catalogue, Entry
from rayhistory.storage import Store

_SESSIONS_AT_ONCE = 8


class Survey:
    def __init__(self, store: Store, layout: Layout, catalogue: Catalogue, vanished_after: float) -> None:
        self._store = store
        self._layout = layout
        self._catalogue = catalogue
        self._vanished_after = vanished_after

    async def facts(self, rules: Rules, owners: dict[Identity, list[Owner]]) -> tuple[list[Facts], int]:
        """Of the sessions that a rule could concern; and how many there are in all."""
        pins = await pinned(self._store, self._layout)
        entries = [e for e in await self._catalogue.entries() if rules.namespace in (None, e.ref.namespace)]
        found: list[Facts] = []

        async def look(entry: Entry) -> None:
            of = owners.get(entry.ref.identity, [])
            found.append(await self._facts(entry, of, is_pinned=entry.ref.identity in pins))

        await each((entry for entry in entries if _concerned(entry, rules, len(entries))), look, _SESSIONS_AT_ONCE)
        return sorted(found, key=lambda facts: (facts.started, facts.ref)), len(entries)

    async def _facts(self, entry: Entry, owners: list[Owner], *, is_pinned: bool) -> Facts:
        state = self._catalogue.state(entry)
        where = await trees(self._store, self._layout, entry.ref, owners)
        objects = await objects_below(self._store, [*where.records, *where.data])
        index = self._layout.index_prefix(entry.ref) + "/"
        written = max((info.modified for info in objects if not info.key.startswith(index)), default=0.0)
        return Facts(
            ref=entry.ref,
            state=state,
            started=(entry.started_ms or 0) / 1000,
            last=await self._last(entry, state, written),
            size=sum(info.size for info in objects),
            written=written,
            failed=True if state == VANISHED else await self._failed(entry),
            pinned=is_pinned,
            quiet_after=self._vanished_after if entry.recorded else DAY,
        )

    async def _last(self, entry: Entry, state: str, written: float) -> float:
        """Of sessions without our record only the store's times are known."""
        if state == RUNNING:
            return time.time()
        closing = await self._catalogue.closing(entry)
        return closing.ns / 1e9 if closing and closing.ns else written

    async def _failed(self, entry: Entry) -> bool | None:
        manifest = await read_latest(self._store, self._layout, entry.ref)
        return bool(manifest.counts.jobs.get("FAILED")) if manifest and manifest.closing else None


def _concerned(entry: Entry, rules: Rules, sessions: int) -> bool:
    if rules.max_bytes is not None or (rules.max_sessions is not None and sessions > rules.max_sessions):
        return True
    ages = [age for age in (rules.max_age, rules.failed_max_age) if age is not None]
    return bool(ages) and time.time() - (entry.started_ms or 0) / 1000 > min(ages)
