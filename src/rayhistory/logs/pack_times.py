"""Times at which packs were stored, by the store's clock. If there are many packs, some times are interpolated."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable

from rayhistory.errors import ObjectNotFound
from rayhistory.packs.compacted_packs import PackObjects
from rayhistory.packs.pack_format import parse_pack_name
from rayhistory.storage import Store

_MAX_LISTED = 2000
_SAMPLES = 16


class PackTimes:
    """Times of one node's packs, in ms. Packs never change, so no time is read twice."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._known: dict[int, int] = {}
        """Times of packs that are known, by pack number."""
        self._has_moved = False
        """True if some packs are compacted."""

    async def of(self, packs: Iterable[str]) -> dict[str, int]:
        """Return the times of these packs. If there are thousands, some times are interpolated."""
        numbers = {name: pack.number for name in packs if (pack := parse_pack_name(name))}
        missing = {number: name for name, number in numbers.items() if number not in self._known}
        if missing and max(numbers.values()) < _MAX_LISTED:
            await self._list(set(numbers.values()))
        elif missing:
            await self._sample(missing)
        if self._has_moved:
            self._has_moved = False
            self._known |= await PackObjects(self._store, self._prefix).times()
        known = sorted(self._known.items())
        return {name: _interpolate(known, number) for name, number in numbers.items()}

    async def _list(self, numbers: set[int]) -> None:
        async for info in self._store.list_all(self._prefix):
            pack = parse_pack_name(info.key)
            if pack and pack.number in numbers:
                self._known[pack.number] = int(info.modified * 1000)
        self._has_moved = not numbers <= self._known.keys()

    async def _sample(self, missing: dict[int, str]) -> None:
        ordered = sorted(missing)
        step = max(1, len(ordered) // _SAMPLES)
        chosen = {*ordered[::step], ordered[-1]}
        await asyncio.gather(*(self._head(number, missing[number]) for number in chosen))

    async def _head(self, number: int, name: str) -> None:
        try:
            self._known[number] = int((await self._store.head(f"{self._prefix}/{name}")).modified * 1000)
        except ObjectNotFound:
            self._has_moved = True


def _interpolate(known: list[tuple[int, int]], number: int) -> int:
    position = bisect_left(known, (number, 0))
    if position == len(known):
        return known[-1][1] if known else 0
    right = known[position]
    if position == 0 or right[0] == number:
        return right[1]
    left = known[position - 1]
    return left[1] + (right[1] - left[1]) * (number - left[0]) // (right[0] - left[0])
