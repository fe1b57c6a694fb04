"""Rate limit per visitor, as a token bucket."""

import time
from collections.abc import Callable

import msgspec

from rayhistory.errors import RateLimited
from rayhistory.lru import LruCache

_MAX_VISITORS = 10_000


class _Bucket(msgspec.Struct, frozen=True):
    tokens: float
    updated: float


class RateLimiter:
    """Allow `per_minute` calls per visitor, and at most half of them in one burst. `per_minute` 0 means no limit."""

    def __init__(self, per_minute: int, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._burst = max(1.0, per_minute / 2)
        self._what = what
        self._clock = clock
        self._buckets: LruCache[str, _Bucket] = LruCache(_MAX_VISITORS)

    def take(self, visitor: str) -> None:
        """Count a call. Raise RateLimited if the visitor has used up the limit."""
        if not self._rate:
            return
        now = self._clock()
        bucket = self._buckets.get(visitor) or _Bucket(self._burst, now)
        tokens = min(self._burst, bucket.tokens + (now - bucket.updated) * self._rate)
        if tokens < 1:
            wait = (1 - tokens) / self._rate
            raise RateLimited(f"too many {self._what}, retry in {wait:.0f} s", wait)
        self._buckets.put(visitor, _Bucket(tokens - 1, now))
