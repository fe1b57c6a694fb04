"""The search index of a session: shards in the store, read by range, which exclude units from a search."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import numpy as np

from rayhistory.errors import IndexDamaged
from rayhistory.lru import LruCache
from rayhistory.search.gram_query import RequiredRows, required_rows
from rayhistory.search.pattern import SearchPattern
from rayhistory.search.scan_plan import UNIT_BYTES, LogFile, LogUnit, ScanPlan
from rayhistory.search.scanner import UnitPlace, unit_place
from rayhistory.search.shard_format import (
    PREAMBLE_BYTES,
    IndexedUnit,
    ShardHeader,
    block_of,
    decode_header,
    groups_with,
    header_bytes,
)

_MAX_UNINDEXED_UNITS = 4
"""Number of unindexed units above which a search starts to index them."""
_FIRST_READ_BYTES = 64 << 10
_MAX_CONCURRENT_READS = 64
"""Maximum number of concurrent reads of one search. A search reads several blocks of each shard."""
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
    """Cached headers and blocks of shards, up to a maximum size."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self.headers: LruCache[str, tuple[ShardHeader, int]] = LruCache(
            max_bytes // 4, cost=lambda entry: 20_000 + 300 * len(entry[0].units)
        )
        self.blocks: LruCache[tuple[str, int], bytes] = LruCache(
            max_bytes * 3 // 4, cost=lambda block: 200 + len(block)
        )
        """Compressed blocks, by shard and number."""


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
        slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)

        async def read_in_slot(name: str, start: int, end: int) -> bytes:
            async with slots:
                return await read(name, start, end)

        self._shards = [_Shard(shard, read_in_slot, cache) for shard in shards]

    async def units(self) -> list[IndexedUnit]:
        """Return all units of all shards."""
        headers = await asyncio.gather(*(shard.header() for shard in self._shards))
        return [unit for header in headers for unit in header.units]

    async def report_unindexed(self, plan: ScanPlan) -> None:
        """Request an index build if many units are not indexed."""
        if self._extend is None:
            return
        indexed = {_identity(unit) for unit in await self.units()}
        unindexed = sum(unit.end - unit.start for unit in plan.units if _planned_identity(unit) not in indexed)
        if unindexed > _MAX_UNINDEXED_UNITS * plan.unit_bytes:
            await self._extend()

    async def line_breaks(self, plan: ScanPlan) -> dict[UnitPlace, int]:
        identities = {(u.file.node, u.file.path): u.file.identity for u in plan.units}
        return {
            (unit.node, unit.path, unit.start): unit.line_breaks
            for unit in await self.units()
            if unit.end - unit.start == plan.unit_bytes and identities.get((unit.node, unit.path)) == unit.identity
        }

    async def file_line_breaks(self, file: LogFile, unit_bytes: int = UNIT_BYTES) -> dict[int, int]:
        """Return the number of line breaks of each whole unit of a file, by the unit's offset."""
        identity = file.node, file.path, file.identity
        return {
            unit.start: unit.line_breaks
            for unit in await self.units()
            if (unit.node, unit.path, unit.identity) == identity and unit.end - unit.start == unit_bytes
        }

    async def excluded(self, units: list[LogUnit], pattern: SearchPattern) -> set[UnitPlace]:
        required = required_rows(pattern.required_text, case=pattern.case)
        if required is None:
            return set()
        places: dict[_Identity, UnitPlace] = {
            _planned_identity(unit): unit_place(unit) for unit in units if not unit.file.ranges
        }
        units_without_match = await asyncio.gather(*(shard.units_without_match(required) for shard in self._shards))
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

    async def units_without_match(self, required: RequiredRows) -> list[IndexedUnit]:
        """Return the units that cannot match, because they have no row in one of the ranges."""
        header, _ = await self._open()
        numbers = {block_of(rows, header.groups) for rows in required.ranges}
        blocks = dict(zip(numbers, await asyncio.gather(*map(self._block, numbers)), strict=True))

        def find() -> list[bool]:
            count = header.groups
            found = [groups_with(rows, blocks[block_of(rows, count)], count) for rows in required.ranges]
            return np.logical_and.reduce(found).tolist()  # type: ignore[no-any-return]

        can_match = await asyncio.to_thread(find)
        return [
            unit
            for unit in header.units
            if not can_match[unit.group] and not (required.or_odd_case and unit.has_odd_case)
        ]

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

    async def _block(self, number: int) -> bytes:
        block = self._cache.blocks.get((self._key, number))
        if block is None:
            header, base = await self._open()
            start = base + sum(header.block_bytes[:number])
            size = header.block_bytes[number]
            block = await self._read(self._name, start, start + size) if size else b""
            if len(block) != size:  # an empty block would exclude all units
                raise IndexDamaged("search index is damaged: truncated shard")
            self._cache.blocks.put((self._key, number), block)
        return block
