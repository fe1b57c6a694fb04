"""The search index of a session: shards in the store, read by range, which exclude units from a search."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from rayhistory.errors import IndexDamaged
from rayhistory.lru import LruCache
from rayhistory.search.key_query import Clause, Fragment, clause_of, fragments_of
from rayhistory.search.pattern import SearchPattern
from rayhistory.search.postings import (
    PREAMBLE_BYTES,
    Bucket,
    IndexedUnit,
    ShardHeader,
    decode_header,
    decode_tokens,
    header_bytes,
)
from rayhistory.search.scan_plan import LogUnit, ScanPlan
from rayhistory.search.scanner import UnitPlace, unit_place

_MAX_UNINDEXED_UNITS = 4
"""Number of unindexed units above which a search starts to index them."""
_FIRST_READ_BYTES = 64 << 10
_CACHE_BYTES = 64 << 20

ReadRange = Callable[[str, int, int], Awaitable[bytes]]
"""Returns bytes [start, end) of a shard."""


_Identity = tuple[str, str, str, int, int]
"""A node, a file and its identity, and the bounds of a unit."""


class ShardFile(NamedTuple):
    name: str
    size: int
    key: str
    """A key that is unique among the shards of all sessions and builds."""


class ShardCache:
    """Cached headers, tokens and buckets of shards, up to a maximum size."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self.headers: LruCache[str, tuple[ShardHeader, int]] = LruCache(
            max_bytes // 4, cost=lambda entry: 1000 + 300 * len(entry[0].units)
        )
        self.tokens: LruCache[str, bytes] = LruCache(max_bytes // 2, cost=len)
        self.buckets: LruCache[tuple[str, int], Bucket] = LruCache(
            max_bytes // 4, cost=lambda bucket: 1000 + 16 * len(bucket.keys)
        )


class SearchIndex:
    """The search index of one session: all of its shards."""

    def __init__(
        self,
        shards: Iterable[ShardFile],
        read: ReadRange,
        cache: ShardCache | None = None,
        on_damage: Callable[[str], object] = lambda reason: None,
        extend: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`extend` starts a build for units that are not indexed."""
        cache = cache or ShardCache()
        self.report_damage = on_damage
        self._extend = extend
        self._shards = [_Shard(shard, read, cache) for shard in shards]

    async def units(self) -> list[IndexedUnit]:
        """Return all units of all shards."""
        headers = await asyncio.gather(*(shard.header() for shard in self._shards))
        return [unit for header in headers for unit in header.units]

    async def report_unindexed(self, plan: ScanPlan) -> None:
        """Request an index build if many units are not indexed."""
        if self._extend is None:
            return
        indexed = {_identity(unit) for unit in await self.units()}
        planned = (unit for batch in plan.batches for unit in batch)
        unindexed = sum(unit.end - unit.start for unit in planned if _planned_identity(unit) not in indexed)
        if unindexed > _MAX_UNINDEXED_UNITS * plan.unit_bytes:
            await self._extend()

    async def line_breaks(self, plan: ScanPlan) -> dict[UnitPlace, int]:
        identities = {(u.file.node, u.file.path): u.file.identity for batch in plan.batches for u in batch}
        return {
            (unit.node, unit.path, unit.start): unit.line_breaks
            for unit in await self.units()
            if unit.end - unit.start == plan.unit_bytes and identities.get((unit.node, unit.path)) == unit.identity
        }

    async def excluded(self, units: list[LogUnit], pattern: SearchPattern) -> set[UnitPlace]:
        fragments = fragments_of(pattern.required_text, case=pattern.case)
        if not fragments:
            return set()
        places: dict[_Identity, UnitPlace] = {
            _planned_identity(unit): unit_place(unit) for unit in units if not unit.file.ranges
        }
        units_without_match = await asyncio.gather(*(shard.units_without_match(fragments) for shard in self._shards))
        excluded = set()
        for unit in (unit for some in units_without_match for unit in some):
            place = places.get(_identity(unit))
            if place:
                excluded.add(place)
        return excluded


def _identity(unit: IndexedUnit) -> _Identity:
    return unit.node, unit.path, unit.identity, unit.start, unit.end


def _planned_identity(unit: LogUnit) -> _Identity:
    return unit.file.node, unit.file.path, unit.file.identity, unit.start, unit.end


class _Shard:
    def __init__(self, file: ShardFile, read: ReadRange, cache: ShardCache) -> None:
        self._key = file.key
        self._name = file.name
        self._size = file.size
        self._read = read
        self._cache = cache

    async def header(self) -> ShardHeader:
        return (await self._open())[0]

    async def units_without_match(self, fragments: Sequence[Fragment]) -> list[IndexedUnit]:
        """Return the units that cannot match, because a required token is missing."""
        header, _ = await self._open()
        tokens = await self._tokens()
        clauses = await asyncio.to_thread(lambda: [clause_of(fragment, tokens) for fragment in fragments])
        candidates = set(range(len(header.units)))
        for clause in clauses:
            if clause is not None and candidates:
                candidates &= await self._matching(clause)
        return [unit for number, unit in enumerate(header.units) if number not in candidates]

    async def _matching(self, clause: Clause) -> set[int]:
        needed = {key >> 24 for alternative in clause for key in alternative}
        buckets = dict(zip(needed, await asyncio.gather(*map(self._bucket, needed)), strict=True))
        found: set[int] = set()
        for alternative in clause:
            found |= set.intersection(*(buckets[key >> 24].units(key) for key in alternative))
        return found

    async def _open(self) -> tuple[ShardHeader, int]:
        opened = self._cache.headers.get(self._key)
        if opened is None:
            data = await self._read(self._name, 0, min(_FIRST_READ_BYTES, self._size))
            if len(data) < PREAMBLE_BYTES:
                raise IndexDamaged("search index is damaged: truncated shard")
            end = PREAMBLE_BYTES + header_bytes(data)
            if end > len(data):
                data += await self._read(self._name, len(data), min(end, self._size))
            opened = decode_header(data[PREAMBLE_BYTES:end]), end
            self._cache.headers.put(self._key, opened)
        return opened

    async def _tokens(self) -> bytes:
        tokens = self._cache.tokens.get(self._key)
        if tokens is None:
            header, base = await self._open()
            offset, size = header.tokens
            data = await self._read(self._name, base + offset, base + offset + size)
            tokens = await asyncio.to_thread(decode_tokens, data)
            self._cache.tokens.put(self._key, tokens)
        return tokens

    async def _bucket(self, number: int) -> Bucket:
        bucket = self._cache.buckets.get((self._key, number))
        if bucket is None:
            header, base = await self._open()
            offset, size = header.buckets[number]
            bucket = Bucket(await self._read(self._name, base + offset, base + offset + size))
            self._cache.buckets.put((self._key, number), bucket)
        return bucket
