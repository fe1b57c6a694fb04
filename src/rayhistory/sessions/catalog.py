"""Which sessions there are, and whether each runs, has ended or has vanished: from listings alone."""

import asyncio
import time
from collections.abc import Callable
from itertools import chain
from typing import TypeVar

import msgspec

from rayhistory.errors import ObjectNotFound, RayHistoryError, SessionNotFound, StoreUnavailable
from rayhistory.index.manifest import Closing
from rayhistory.layout import LARGEST_RECORD, EndRecord, Layout, SessionRef, StartRecord, VanishedRecord, read_record
from rayhistory.layout.session import session_time
from rayhistory.server.noted import NotedSessions
from rayhistory.storage import ObjectInfo, Store

LATEST, LIVE = "latest", "live"
T = TypeVar("T", bound=msgspec.Struct)
P = TypeVar("P")

RUNNING, ENDED, VANISHED = "running", "ended", "vanished"

_FRESH = 2.0
_QUICK = 0.2
_OLD = 10.0
_PATIENCE = 25.0
_FEW_KEYS = 900  # less than a page
_MANY_FOLDERS = 200


class Entry(msgspec.Struct):
    """A session, as the listing shows it."""

    ref: SessionRef
    recorded: bool = False
    """Whether a collector of ours wrote its record; sessions of KubeRay's collectors have none."""
    alive: float | None = None
    sealed: bool = False
    vanished: bool = False
    """Whether that is on record, as it is of a copy."""
    started_ms: int | None = None
    """By the session's name; the record knows better."""

    @classmethod
    def of(cls, ref: SessionRef) -> "Entry":
        moment = session_time(ref.session)
        return cls(ref, started_ms=int(moment.timestamp() * 1000) if moment else None)

    def state(self, now: float, vanished_after: float) -> str:
        if self.sealed or not self.recorded:
            return ENDED
        if self.vanished:
            return VANISHED
        return RUNNING if self.alive is not None and now - self.alive < vanished_after else VANISHED


class Catalogue:
    def __init__(
        self,
        store: Store,
        layout: Layout,
        vanished_after: float,
        is_there: Callable[[str, str], bool] = lambda namespace, cluster: False,
    ) -> None:
        """`is_there` tells whether Kubernetes has the cluster: of KubeRay's own collectors there is no sign of life."""
        self._store = store
        self._layout = layout
        self._vanished_after = vanished_after
        self._is_there = is_there
        self._entries: list[Entry] = []
        self._clusters: dict[tuple[str, str], list[Entry]] = {}
        self._listed = float("-inf")
        self._took = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._failure: RayHistoryError | None = None
        self._lock = asyncio.Lock()
        self._noted = NotedSessions(store, layout)
        self._starts: dict[tuple[str, str, str], StartRecord] = {}
        self._ends: dict[tuple[str, str, str], EndRecord] = {}
        self._vanished: dict[tuple[str, str, str], VanishedRecord] = {}

    async def entries(self) -> list[Entry]:
        """Every session, running ones first, newest first. Raises when the store cannot be listed."""
        age = time.monotonic() - self._listed
        if self._took < _QUICK or age > _OLD:
            await self._look()
        elif age > _FRESH and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())  # a long listing is not waited for: the next visit has it
        if self._failure:
            raise self._failure.with_traceback(None)
        return self._entries

    async def _look(self) -> None:
        async with self._lock:
            if time.monotonic() - self._listed > _FRESH:
                await self._refresh()

    async def _refresh(self) -> None:
        """A failure is remembered as long as a listing: those who wait do not ask a store that is away one by one."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self._list()
        except TimeoutError:
            self._failure = StoreUnavailable(f"the store did not list its sessions within {_PATIENCE:g} s")
        except RayHistoryError as error:
            self._failure = error
        else:
            self._failure = None
            self._clusters = {}
            for entry in found.values():
                self._clusters.setdefault((entry.ref.namespace, entry.ref.cluster), []).append(entry)
            self._entries = sorted(found.values(), key=self._order)
            self._starts = {identity: record for identity, record in self._starts.items() if identity in found}
            self._ends = {identity: record for identity, record in self._ends.items() if identity in found}
            self._vanished = {identity: record for identity, record in self._vanished.items() if identity in found}
        self._listed = time.monotonic()
        self._took = self._listed - began

    def state(self, entry: Entry) -> str:
        if not entry.recorded and self._is_there(entry.ref.namespace, entry.ref.cluster) and self._is_newest(entry):
            return RUNNING
        return entry.state(time.time(), self._vanished_after)

    def _is_newest(self, entry: Entry) -> bool:
        others = self._clusters.get((entry.ref.namespace, entry.ref.cluster), ())
        return all((other.started_ms or 0) <= (entry.started_ms or 0) for other in others)

    async def find(self, namespace: str, cluster: str, session: str) -> Entry:
        """The session of this name, or the newest one for `latest` and `live`."""
        await self.entries()
        return _first(self._clusters.get((namespace, cluster), []), session, f"{namespace}/{cluster}")

    async def find_owned(self, namespace: str, kind: str, name: str, session: str) -> Entry:
        """The same, by what created the cluster."""
        owned = [
            e
            for e in await self.entries()
            if (e.ref.namespace, e.ref.owner_kind, e.ref.owner_name) == (namespace, kind, name)
        ]
        return _first(owned, session, f"{namespace}/{kind}/{name}")

    async def start(self, entry: Entry) -> StartRecord | None:
        if not entry.recorded:
            return None
        record = self._starts.get(entry.ref.identity)
        if record is None or record.ray_version is None:
            record = await self._read(self._layout.start_key(entry.ref), StartRecord)
            if record is not None:
                self._starts[entry.ref.identity] = record
        return record

    async def end(self, entry: Entry) -> EndRecord | None:
        if not entry.sealed:
            return None
        record = self._ends.get(entry.ref.identity)
        if record is None:
            record = await self._read(self._layout.end_key(entry.ref), EndRecord)
            if record is not None:
                self._ends[entry.ref.identity] = record
        return record

    async def closing(self, entry: Entry) -> Closing | None:
        """How what was left open is to be closed; None while the session runs."""
        state = self.state(entry)
        if state == RUNNING:
            return None
        if state == VANISHED:
            return Closing(await self._last_life_ns(entry), clean=False)
        end = await self.end(entry)
        return Closing(end.ended_ms * 1_000_000 if end else 0, clean=True, open=end.open if end else False)

    async def _last_life_ns(self, entry: Entry) -> int:
        record = self._vanished.get(entry.ref.identity)
        if record is None and entry.vanished:
            record = await self._read(self._layout.vanished_key(entry.ref), VanishedRecord)
            if record is not None:
                self._vanished[entry.ref.identity] = record
        return record.last_ms * 1_000_000 if record else int((entry.alive or 0) * 1e9)

    async def _read(self, key: str, kind: type[T]) -> T | None:
        try:
            return read_record(await self._store.get_range(key, 0, LARGEST_RECORD), kind)
        except ObjectNotFound:
            return None

    def _order(self, entry: Entry) -> tuple[bool, int, SessionRef]:
        return self.state(entry) != RUNNING, -(entry.started_ms or 0), entry.ref

    async def _list(self) -> dict[tuple[str, str, str], Entry]:
        layout = self._layout
        noted, old, present, records, removed = await asyncio.gather(
            self._noted.sessions(),
            self._known(layout.old_metadata_prefix(), layout.parse_old_metadata_key),
            self._known(layout.metadata_prefix(), layout.parse_metadata_key),
            self._known(layout.sessions_prefix(), layout.parse_record_key),
            self._known(layout.tombstones_prefix(), layout.parse_mark_key),
        )
        entries = {ref.identity: Entry.of(ref) for ref in (*noted, *(ref for ref, _ in (*old, *present)))}
        for (ref, record), modified in records:
            entry = entries.get(ref.identity) or entries.setdefault(ref.identity, Entry.of(ref))
            _add_record(entry, record, modified)
        for ref, _ in removed:
            entries.pop(ref.identity, None)
        return entries

    async def _known(self, prefix: str, parse: Callable[[str], P | None]) -> list[tuple[P, float]]:
        """What the keys below a prefix stand for, and when each was written."""
        return [(known, info.modified) for info in await self._keys(prefix) if (known := parse(info.key)) is not None]

    async def _keys(self, prefix: str) -> list[ObjectInfo]:
        """Pages come one after the other: when there are many, the trees of clusters are listed side by side."""
        found = []
        async for info in self._store.list_all(prefix):
            found.append(info)
            if len(found) == _FEW_KEYS:
                break
        else:
            return found
        upper = await self._store.list_folder(prefix)
        below = await asyncio.gather(*(self._side_by_side(f"{prefix}/{folder}") for folder in upper.folders))
        return [*upper.objects, *chain.from_iterable(below)]

    async def _side_by_side(self, prefix: str) -> list[ObjectInfo]:
        listing = await self._store.list_folder(prefix)
        if len(listing.folders) > _MANY_FOLDERS:  # with little in each
            return await self._all(prefix)
        below = await asyncio.gather(*(self._all(f"{prefix}/{folder}") for folder in listing.folders))
        return [*listing.objects, *chain.from_iterable(below)]

    async def _all(self, prefix: str) -> list[ObjectInfo]:
        return [info async for info in self._store.list_all(prefix)]


def _add_record(entry: Entry, record: str, modified: float) -> None:
    entry.recorded = True
    if record == "alive" or (record == "start.json" and entry.alive is None):
        entry.alive = modified
    elif record == "end.json":
        entry.sealed = True
    elif record == "vanished.json":
        entry.vanished = True


def _first(candidates: list[Entry], session: str, where: str) -> Entry:
    if session in (LATEST, LIVE):
        if candidates:
            return max(candidates, key=lambda entry: entry.started_ms or 0)
        raise SessionNotFound(f"no session of {where} is in the store")
    for entry in candidates:
        if entry.ref.session == session:
            return entry
    raise SessionNotFound(f"no session {session} of {where} is in the store")
