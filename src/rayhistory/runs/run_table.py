"""The run table for readers: summaries of all sessions in memory, and details in local copies of its parts."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import msgspec

from rayhistory.errors import IndexDamaged, ObjectNotFound
from rayhistory.lru import LruCache
from rayhistory.runs.run_inbox import Inbox, InboxEntry, list_inbox, read_entries
from rayhistory.runs.run_manifest import RunManifest, RunPart, list_generations, read_run_manifest
from rayhistory.runs.run_parts import MAX_PART_BYTES, FullRow, Identity, RunRow, read_rows, read_summaries
from rayhistory.runs.session_summary import SessionDetails, SessionSummary
from rayhistory.sessions import Layout
from rayhistory.storage import Store

log = logging.getLogger(__name__)

MAX_SESSIONS = 50_000
"""Maximum number of sessions in memory. Older sessions are only counted."""
_FRESH_FOR_S = 2.0
_CONCURRENT_FETCHES = 16
_CACHED_ENTRIES = 2_000


class RunRows(msgspec.Struct, frozen=True):
    """The summaries at one point in time."""

    summaries: dict[Identity, SessionSummary]
    version: int
    """A number that changes when the summaries change."""
    generations: dict[Identity, int] = {}
    """The generations of the tables that the summaries were made from."""
    quarantined: int = 0
    damaged: tuple[str, ...] = ()
    """Parts that cannot be read. Their rows are missing until they are rebuilt."""
    unlisted: int = 0
    """Number of older sessions that are left out, because there are more than `MAX_SESSIONS`."""


class RunTable:
    """Reads the run table of a store. Nothing is read twice."""

    def __init__(self, store: Store, layout: Layout, cache_dir: Path) -> None:
        self.store = store
        self.layout = layout
        self._directory = cache_dir / "runs"
        self._lock = asyncio.Lock()
        self._parts: dict[str, list[RunRow]] = {}
        self._damaged: set[str] = set()
        self._entries: LruCache[str, FullRow] = LruCache(_CACHED_ENTRIES)
        self._manifest = RunManifest()
        self._inbox = Inbox({}, [])
        self._rows = RunRows({}, 0)
        self._loaded_at = float("-inf")

    async def load(self, *, max_age_s: float = _FRESH_FOR_S) -> RunRows:
        """Return the summaries of all sessions."""
        async with self._lock:
            if time.monotonic() - self._loaded_at >= max_age_s:
                await self._refresh()
                self._loaded_at = time.monotonic()
        return self._rows

    @property
    def manifest(self) -> RunManifest:
        return self._manifest

    @property
    def inbox(self) -> Inbox:
        return self._inbox

    def identities(self, part: str) -> set[Identity]:
        """Return the sessions of a loaded part."""
        return {row.summary.identity for row in self._parts.get(part, [])}

    def add_written(self, part: RunPart, rows: Iterable[FullRow]) -> None:
        """Use the rows of a part that this process has just written, without fetching it."""
        self._parts[part.name] = [RunRow(row.generation, row.stored.summary) for row in rows]

    async def details(self, identities: Iterable[Identity]) -> dict[Identity, SessionDetails]:
        """Return the details of some sessions. Sessions that cannot be read are left out."""
        wanted = set(identities)
        rows: dict[Identity, FullRow] = {}
        for part in self._manifest.parts:
            chosen = wanted & self.identities(part.name)
            for row in await self._full_rows(part, chosen) if chosen else ():
                _keep_newest(rows, row)
        entries = [each for identity, each in self._inbox.newest.items() if identity in wanted]
        for entry in (await self._read_entries(entries)).values():
            if entry is not None:
                _keep_newest(rows, entry)
        return {identity: row.stored.details for identity, row in rows.items()}

    async def full_rows(self, part: RunPart) -> list[FullRow]:
        """Return all rows of a part; raise IndexDamaged if it cannot be read."""
        path = await self._fetch(part)
        try:
            return await asyncio.to_thread(read_rows, path)
        except IndexDamaged:  # the local copy may be damaged, and not the object
            path.unlink(missing_ok=True)
            return await asyncio.to_thread(read_rows, await self._fetch(part))

    async def _full_rows(self, part: RunPart, chosen: set[Identity]) -> list[FullRow]:
        try:
            return await asyncio.to_thread(read_rows, await self._fetch(part), chosen)
        except IndexDamaged:
            return []

    async def _refresh(self) -> None:
        """Read new parts, and new entries of the inbox, concurrently.

        An entry leaves the inbox once a manifest has its row. A manifest that is older than the listing of the inbox
        may therefore lack rows that are no longer in the inbox. It is then read again.
        """
        manifest, (inbox, generation) = await asyncio.gather(self._load_parts(), self._load_inbox())
        if generation > manifest.generation:
            manifest = await self._load_parts()
        names = {part.name for part in manifest.parts}
        self._damaged &= names
        changed = (manifest, inbox.newest) != (self._manifest, self._inbox.newest)
        for name in self._parts.keys() - names:
            del self._parts[name]
            for copy in (name, f"{name}.lists"):
                self._path(copy).unlink(missing_ok=True)
        self._manifest, self._inbox = manifest, inbox
        if changed:
            self._rows = await self._merged()

    async def _load_parts(self) -> RunManifest:
        """Read the manifest, and all of its parts that are not in memory."""
        manifest = await read_run_manifest(self.store, self.layout)
        new = [part for part in manifest.parts if part.name not in self._parts and part.name not in self._damaged]
        slots = asyncio.Semaphore(_CONCURRENT_FETCHES)
        await asyncio.gather(*(self._load_part(part, slots) for part in new))
        return manifest

    async def _load_inbox(self) -> tuple[Inbox, int]:
        """Read the inbox. Return it, and the newest generation of the run table after the inbox was listed."""
        inbox = await list_inbox(self.store, self.layout)
        generations, _ = await asyncio.gather(
            list_generations(self.store, self.layout), self._read_entries(inbox.newest.values())
        )
        return inbox, max(generations, default=0)

    async def _merged(self) -> RunRows:
        entries = [row for row in (await self._read_entries(self._inbox.newest.values())).values() if row]
        in_parts = chain.from_iterable(self._parts.get(part.name, []) for part in self._manifest.parts)
        newest: dict[Identity, RunRow] = {}
        for row in chain(in_parts, (RunRow(row.generation, row.stored.summary) for row in entries)):
            other = newest.get(row.summary.identity)
            if other is None or row.generation >= other.generation:
                newest[row.summary.identity] = row
        summaries = {identity: row.summary for identity, row in newest.items()}
        unlisted = max(0, len(summaries) - MAX_SESSIONS)
        if unlisted:
            latest = sorted(summaries.values(), key=lambda each: each.started_ms or 0, reverse=True)[:MAX_SESSIONS]
            summaries = {each.identity: each for each in latest}
        generations = {identity: row.generation for identity, row in newest.items()}
        damaged = tuple(sorted(self._damaged))
        version = self._rows.version + 1
        return RunRows(summaries, version, generations, self._manifest.quarantined, damaged, unlisted)

    async def _load_part(self, part: RunPart, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                self._parts[part.name] = await self._summaries(part)
            except IndexDamaged as error:
                fields = {"part": part.name, "reason": str(error)}
                log.warning("object of the run table is damaged, its sessions are not listed", extra=fields)
                self._damaged.add(part.name)

    async def _summaries(self, part: RunPart) -> list[RunRow]:
        path = await self._fetch(part, with_details=False)
        try:
            return await asyncio.to_thread(read_summaries, path)
        except IndexDamaged:  # the local copy may be damaged, and not the object
            path.unlink(missing_ok=True)
            return await asyncio.to_thread(read_summaries, await self._fetch(part))

    async def _fetch(self, part: RunPart, *, with_details: bool = True) -> Path:
        """Return a local copy of a part. Without details, the copy has an unwritten range in their place."""
        path, lists = self._path(part.name), self._path(f"{part.name}.lists")
        for copy in (path,) if with_details else (path, lists):
            with contextlib.suppress(OSError):
                if copy.stat().st_size == part.size:
                    return copy
        details = range(part.details_at, part.details_at + part.details_size)
        if with_details or not part.details_size or details.stop > part.size:
            await asyncio.to_thread(_write, path, [(0, await self._read(part, 0, part.size))])
            return path
        ends = await asyncio.gather(self._read(part, 0, details.start), self._read(part, details.stop, part.size))
        await asyncio.to_thread(_write, lists, [(0, ends[0]), (details.stop, ends[1])])
        return lists

    async def _read(self, part: RunPart, start: int, end: int) -> bytes:
        if end > MAX_PART_BYTES:
            raise IndexDamaged(f"file {part.name} of the run table is too large")
        try:
            data = await self.store.get_range(self.layout.run_part_key(part.name), start, end)
        except ObjectNotFound:
            raise IndexDamaged(f"file {part.name} of the run table is missing") from None
        if len(data) != end - start:
            raise IndexDamaged(f"file {part.name} of the run table has a wrong size")
        return data

    async def _read_entries(self, entries: Iterable[InboxEntry]) -> dict[str, FullRow | None]:
        """Return the rows of entries by key, from memory if they were read before."""
        wanted = list(entries)
        found: dict[str, FullRow | None] = {each.key: row for each in wanted if (row := self._entries.get(each.key))}
        read = await read_entries(self.store, [each for each in wanted if each.key not in found])
        for key, row in read.items():
            if row is not None:
                self._entries.put(key, row)
        return found | read

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.parquet"


def _keep_newest(rows: dict[Identity, FullRow], row: FullRow) -> None:
    other = rows.get(row.identity)
    if other is None or row.generation >= other.generation:
        rows[row.identity] = row


def _write(path: Path, pieces: list[tuple[int, bytes]]) -> None:
    """Write ranges of a file at their offsets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{time.monotonic_ns()}")
    try:
        with temporary.open("wb") as file:
            for offset, data in pieces:
                file.seek(offset)
                file.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
