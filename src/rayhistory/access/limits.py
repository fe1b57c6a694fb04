"""How much one visitor may ask for in a short time."""

import time
from collections import OrderedDict
from collections.abc import Callable

from rayhistory.errors import TooManyCalls

_MOST_VISITORS = 10_000


class Allowance:
    """So many calls in a minute for each visitor; after a pause, up to half of a minute's at once."""

    def __init__(self, per_minute: int, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._most = max(1.0, per_minute / 2)
        self._what = what
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> None:
        """Counts a call; raises TooManyCalls when there were too many."""
        if not self._rate:
            return
        left = self._now_left(who)
        if left < 1:
            raise TooManyCalls(f"too many {self._what}: not so fast", (1 - left) / self._rate)
        self._keep(who, left - 1)

    def check(self, who: str) -> None:
        """The same without counting."""
        if self._rate and (left := self._now_left(who)) < 1:
            raise TooManyCalls(f"too many {self._what}: not so fast", (1 - left) / self._rate)

    def _now_left(self, who: str) -> float:
        left, since = self._left.get(who, (self._most, self._clock()))
        return min(self._most, left + (self._clock() - since) * self._rate)

    def _keep(self, who: str, left: float) -> None:
        self._left[who] = left, self._clock()
        self._left.move_to_end(who)
        if len(self._left) > _MOST_VISITORS:
            self._left.popitem(last=False)
