"""A least-recently-used cache, limited by entries, cost or age."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Drops the least recently used entries above `max_cost`. Entries older than `ttl` seconds are dropped, too.

    The cost of an entry is 1, unless `cost` is given. An entry that alone exceeds `max_cost` is not stored.
    """

    def __init__(
        self,
        max_cost: int,
        *,
        ttl: float | None = None,
        cost: Callable[[V], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_cost = max_cost
        self.total_cost = 0
        self._ttl = ttl
        self._cost = cost
        self._clock = clock
        self._entries: OrderedDict[K, tuple[V, int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, _, expires = entry
        if expires <= self._clock():
            self.pop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V, *, ttl: float | None = None) -> None:
        """Store a value. `ttl` overrides the cache's default for this entry."""
        self.pop(key)
        cost = self._cost(value) if self._cost else 1
        if cost > self.max_cost:
            return
        lifetime = self._ttl if ttl is None else ttl
        expires = float("inf") if lifetime is None else self._clock() + lifetime
        self._entries[key] = value, cost, expires
        self.total_cost += cost
        while self.total_cost > self.max_cost:
            self.pop(next(iter(self._entries)))

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.total_cost -= entry[1]
        return entry[0]

    def clear(self) -> None:
        self._entries.clear()
        self.total_cost = 0
