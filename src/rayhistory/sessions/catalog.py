"""The catalog: all sessions of a store.

Their states come from listings and, for sessions that only KubeRay recorded, from Kubernetes. Records are read when
they are needed.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from rayhistory.errors import ObjectNotFound, RayHistoryError, SessionNotFound, StoreUnavailable
from rayhistory.sessions import (
    MAX_RECORD_BYTES,
    EndRecord,
    Layout,
    SessionRef,
    StartRecord,
    VanishedRecord,
    read_record,
)
from rayhistory.sessions.catalog_entry import ENDED, RUNNING, VANISHED, CatalogEntry, set_successors
from rayhistory.sessions.legacy_layout import LegacySessionScanner
from rayhistory.sessions.records import Closing, bounded_end, is_resumed
from rayhistory.sessions.selection import LATEST, LIVE
from rayhistory.settings import Settings
from rayhistory.storage import Store
from rayhistory.storage.parallel_listing import RepeatedListing

T = TypeVar("T", bound=msgspec.Struct)
P = TypeVar("P")

__all__ = ["ENDED", "RUNNING", "VANISHED", "CatalogEntry", "SessionCatalog"]

_FRESH_FOR_S = 2.0
_FAST_LISTING_S = 0.2
_MAX_AGE_S = 10.0
_LIST_TIMEOUT_S = 25.0
_CONCURRENT_RECORDS = 16
_SILENCE_FACTOR = 10
"""If no session has a fresh heartbeat, sessions vanish only after this many times the usual period."""


class SessionCatalog:
    """Lists sessions, with a short cache, and reads their records."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        vanished_after: float,
        cluster_exists: Callable[[str, str], bool] = lambda namespace, cluster: False,
        *,
        read_legacy_layout: bool = False,
    ) -> None:
        """`cluster_exists` asks Kubernetes about a cluster, because KubeRay's collectors write no heartbeat."""
        self._store = store
        self._layout = layout
        self._vanished_after = vanished_after
        self._cluster_exists = cluster_exists
        self._entries: list[CatalogEntry] = []
        self._clusters: dict[tuple[str, str], list[CatalogEntry]] = {}
        self._listed_at = float("-inf")
        self._listing_took = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._listing = RepeatedListing(store)
        self._failure: RayHistoryError | None = None
        self._lock = asyncio.Lock()
        self._legacy = LegacySessionScanner(store, layout) if read_legacy_layout else None
        self._starts: dict[tuple[str, str, str], StartRecord] = {}
        self._ends: dict[tuple[str, str, str], EndRecord] = {}
        self._vanished: dict[tuple[str, str, str], VanishedRecord] = {}
        self._newest_sign: float | None = None
        """The newest heartbeat or end record of all listings."""
        self._heard_at: float | None = None
        """The time of the last change of `_newest_sign`, by the monotonic clock."""

    @classmethod
    def from_settings(
        cls,
        store: Store,
        layout: Layout,
        settings: Settings,
        cluster_exists: Callable[[str, str], bool] = lambda namespace, cluster: False,
    ) -> "SessionCatalog":
        return cls(
            store, layout, settings.vanished_after, cluster_exists, read_legacy_layout=settings.read_legacy_layout
        )

    async def entries(self) -> list[CatalogEntry]:
        """Return all sessions: running ones first, then newest first. Raise an error if the store cannot be listed."""
        age = time.monotonic() - self._listed_at
        if self._listing_took < _FAST_LISTING_S or age > _MAX_AGE_S:
            await self._refresh_if_stale()
        elif age > _FRESH_FOR_S:  # a slow listing runs in the background, for the next request
            self._refresh_in_background()
        if self._failure:
            raise self._failure.with_traceback(None)
        return self._entries

    async def entries_since(self, started: float) -> list[CatalogEntry]:
        """Return all sessions, from a listing that began after this time of the monotonic clock."""
        async with self._lock:
            if self._listed_at - self._listing_took < started:
                await self._refresh()
        return await self.entries()

    async def entries_within(self, timeout_s: float) -> list[CatalogEntry] | None:
        """Return all sessions; None if the first listing takes longer. The listing continues for the next request."""
        if self._listed_at == float("-inf"):
            await asyncio.wait([self._refresh_in_background()], timeout=timeout_s)
        return None if self._listed_at == float("-inf") else await self.entries()

    def _refresh_in_background(self) -> asyncio.Task[None]:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_if_stale())
        return self._refreshing

    async def _refresh_if_stale(self) -> None:
        async with self._lock:
            if time.monotonic() - self._listed_at > _FRESH_FOR_S:
                await self._refresh()

    async def _refresh(self) -> None:
        """List the store. A failure is cached like a result, so that waiting requests do not all retry."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                found = await self._list()
        except TimeoutError:
            self._failure = StoreUnavailable(
                f"listing the sessions of the store took longer than {_LIST_TIMEOUT_S:g} s"
            )
        except RayHistoryError as error:
            self._failure = error
        else:
            self._failure = None
            self._clusters = {}
            for entry in found.values():
                self._clusters.setdefault((entry.ref.namespace, entry.ref.cluster), []).append(entry)
            self._hear(found.values())
            self._entries = sorted(found.values(), key=self._order)
            self._starts = {identity: record for identity, record in self._starts.items() if identity in found}
            self._ends = {identity: record for identity, record in self._ends.items() if identity in found}
            self._vanished = {identity: record for identity, record in self._vanished.items() if identity in found}
        self._listed_at = time.monotonic()
        self._listing_took = self._listed_at - started

    def state(self, entry: CatalogEntry) -> str:
        if (
            not entry.recorded
            and self._cluster_exists(entry.ref.namespace, entry.ref.cluster)
            and self._is_newest(entry)
        ):
            return RUNNING
        return entry.state(self.now(), self._vanished_after)

    def now(self) -> float:
        """Return a time that the store's clock has reached: that of the newest heartbeat or end of any session.

        So a session that has vanished stays vanished. If no heartbeat is fresh, a clock is wrong or no collector can
        write, and no other session vanishes. After a much longer time, all of them vanish.
        """
        newest = self._newest_sign
        if newest is None:
            return time.time()
        silence = time.time() - newest if self._heard_at is None else time.monotonic() - self._heard_at
        return newest + silence if silence >= _SILENCE_FACTOR * self._vanished_after else newest

    def _hear(self, entries: Iterable[CatalogEntry]) -> None:
        signs = (entry.end_stored if entry.ended else entry.alive for entry in entries if not entry.vanished)
        newest = max((sign for sign in signs if sign is not None), default=None)
        if newest is None or (self._newest_sign is not None and newest <= self._newest_sign):
            return
        if self._listed_at != float("-inf"):  # not what the first listing found
            self._heard_at = time.monotonic()
        self._newest_sign = newest

    def _is_newest(self, entry: CatalogEntry) -> bool:
        others = self._clusters.get((entry.ref.namespace, entry.ref.cluster), ())
        return all(other.appeared <= entry.appeared for other in others)

    async def find(self, namespace: str, cluster: str, session: str) -> CatalogEntry:
        """Return the session of this name; for `latest` and `live`, the newest running one, else the newest."""
        await self.entries()
        return await self._select(self._clusters.get((namespace, cluster), []), session, f"{namespace}/{cluster}")

    async def find_owned(self, namespace: str, kind: str, name: str, session: str) -> CatalogEntry:
        """Return a session as `find` does, by the owner of its cluster instead of the cluster's name."""
        owned = [
            entry
            for entry in await self.entries()
            if (entry.ref.namespace, entry.ref.owner_kind, entry.ref.owner_name) == (namespace, kind, name)
        ]
        return await self._select(owned, session, f"{namespace}/{kind}/{name}")

    async def _select(self, candidates: list[CatalogEntry], session: str, where: str) -> CatalogEntry:
        if session in (LATEST, LIVE):
            if candidates:
                running = [entry for entry in candidates if self.state(entry) == RUNNING]
                return await self._newest(running or candidates)
            raise SessionNotFound(f"the store has no session of {where}")
        for entry in candidates:
            if entry.ref.session == session:
                return entry
        raise SessionNotFound(f"the store has no session {session} of {where}")

    async def _newest(self, candidates: list[CatalogEntry]) -> CatalogEntry:
        """Return the session that was added to the store last.

        The keys of a session give the latest time at which it can have been added. So start records are read in
        batches, those with the latest of these times first, until no other session can be newer. Copies that earlier
        releases made have only new keys, so all of their start records are read.
        """
        by_keys = sorted(candidates, key=lambda entry: entry.newest_possible, reverse=True)
        newest: list[tuple[float, SessionRef, CatalogEntry]] = []
        for start in range(0, len(by_keys), _CONCURRENT_RECORDS):
            batch = by_keys[start : start + _CONCURRENT_RECORDS]
            if newest and newest[0][0] > batch[0].newest_possible:
                break
            times = await asyncio.gather(*map(self._appeared, batch))
            found = [(at, entry.ref, entry) for at, entry in zip(times, batch, strict=True)]
            newest = [max([*newest, *found], key=lambda each: each[:2])]
        return newest[0][2]

    async def _appeared(self, entry: CatalogEntry) -> float:
        record = await self.start(entry)
        if record is None or record.stored_ms is None:
            later = await self._appeared(entry.successor) if entry.successor else float("inf")
            return min(entry.appeared, later - 1.0)
        return min(record.stored_ms / 1000, entry.newest_possible)

    async def start(self, entry: CatalogEntry) -> StartRecord | None:
        if not entry.recorded:
            return None
        record = self._starts.get(entry.ref.identity)
        if record is None or record.ray_version is None:
            record = await self._read(self._layout.start_key(entry.ref), StartRecord)
            if record is not None:
                self._starts[entry.ref.identity] = record
        return record

    async def end(self, entry: CatalogEntry) -> EndRecord | None:
        if not entry.ended:
            return None
        record = self._ends.get(entry.ref.identity)
        if record is None:
            record = await self._read(self._layout.end_key(entry.ref), EndRecord)
            if record is not None:
                self._ends[entry.ref.identity] = record = bounded_end(record, entry.end_stored)
        return record

    async def ended_at(self, entry: CatalogEntry) -> float | None:
        """Return the time when the session ended, by the store's clock; None if it runs or has no record of its end."""
        state = self.state(entry)
        if state == VANISHED:
            return await self._last_heartbeat_ns(entry) / 1e9 or None
        record = await self.end(entry) if state == ENDED else None
        return record.stored_ms / 1000 if record and record.stored_ms is not None else entry.end_stored

    async def closing(self, entry: CatalogEntry) -> Closing | None:
        """Return the session end that the index uses to infer states; None while the session runs."""
        state = self.state(entry)
        if state == RUNNING:
            return None
        if state == VANISHED:
            return Closing(await self._last_heartbeat_ns(entry), clean=False)
        end = await self.end(entry)
        return Closing(end.ended_ms * 1_000_000 if end else 0, clean=True, open=end.open if end else False)

    async def _last_heartbeat_ns(self, entry: CatalogEntry) -> int:
        record = self._vanished.get(entry.ref.identity)
        if record is None and entry.vanished:
            record = await self._read(self._layout.vanished_key(entry.ref), VanishedRecord)
            if record is not None:
                self._vanished[entry.ref.identity] = record
        return record.last_ms * 1_000_000 if record else int((entry.alive or 0) * 1e9)

    async def _read(self, key: str, kind: type[T]) -> T | None:
        try:
            return read_record(await self._store.get_range(key, 0, MAX_RECORD_BYTES), kind)
        except ObjectNotFound:
            return None

    def _order(self, entry: CatalogEntry) -> tuple[bool, float, SessionRef]:
        return self.state(entry) != RUNNING, -entry.appeared, entry.ref

    async def _list(self) -> dict[tuple[str, str, str], CatalogEntry]:
        layout = self._layout
        legacy, v1_6, v1_7, records, removed = await asyncio.gather(
            self._legacy_sessions(),
            self._parsed(layout.v1_6_metadata_prefix(), layout.parse_v1_6_metadata_key),
            self._parsed(layout.metadata_prefix(), layout.parse_metadata_key),
            self._parsed(layout.sessions_prefix(), layout.parse_record_key),
            self._parsed(layout.tombstones_prefix(), layout.parse_pin_or_tombstone_key),
        )
        entries = {ref.identity: CatalogEntry.of(ref) for ref in (*legacy, *(ref for ref, _ in (*v1_6, *v1_7)))}
        for ref, modified in (*v1_6, *v1_7):
            entries[ref.identity].add_key(modified)
        first_stored: list[tuple[SessionRef, float]] = []
        for (ref, record), modified in records:
            stored_ms = layout.parse_first_stored(record)
            if stored_ms is not None:
                first_stored.append((ref, min(modified, stored_ms / 1000)))
                continue
            entry = entries.get(ref.identity) or entries.setdefault(ref.identity, CatalogEntry.of(ref))
            entry.add_record(record, modified)
        for ref, stored in first_stored:
            if ref.identity in entries:
                entries[ref.identity].add_key(stored)
        for ref, _ in removed:
            entries.pop(ref.identity, None)
        for entry in entries.values():
            if is_resumed(entry.heartbeat, entry.end_stored):
                entry.ended, entry.end_stored = False, None
        set_successors(entries.values())
        return entries

    async def _legacy_sessions(self) -> list[SessionRef]:
        return await self._legacy.sessions() if self._legacy else []

    async def _parsed(self, prefix: str, parse: Callable[[str], P | None]) -> list[tuple[P, float]]:
        """Return the parsed keys below a prefix with their modification times."""
        listed = await self._listing.objects(prefix)
        return [(parsed, info.modified) for info in listed if (parsed := parse(info.key)) is not None]
