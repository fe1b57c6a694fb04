"""A node's metrics, sampled into objects of up to an hour.

The object of the hour is written again every minute: a node that vanishes loses a minute of metrics, and readers
find few objects. Nothing is kept on disk: a store that is away for long finds the hours waiting in memory, compressed.
"""

import asyncio
import logging
import math
import random
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from rayhistory.collector.discovery import autoscaler_port, metrics_port
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.prometheus import MOST_SERIES, Scrape, ScrapeError, scrape, take_apart
from rayhistory.collector.supervise import delays
from rayhistory.errors import StoreError
from rayhistory.layout.metrics import Samples, Series, encode
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_SCRAPE = 10.0
_SHIP = 60.0
_SHIP_FIRST = 20.0
_LONGEST = 3_600_000
_MOST_VALUES = 500_000
_MOST_WAITING = 8 * 2**20
_LAST_PAUSES = 2.0

# The same for all series of the session, and said by the object's key or by nobody.
_NOISE = {"SessionName", "Version", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}


class Window:
    """What was sampled since `first_ms`: a column per series, all of the same length."""

    def __init__(self, key: str, first_ms: int) -> None:
        self.key = key
        self.first_ms = first_ms
        self.dropped = 0
        self.changed = False
        self._times = array("q")
        self._columns: dict[bytes, array[float]] = {}
        self._types: dict[str, str] = {}

    def add(self, at_ms: int, found: Scrape) -> None:
        before, lost = len(self._times), found.dropped
        for series, value in found.values.items():
            column = self._columns.get(series)
            if column is None:
                if len(self._columns) >= MOST_SERIES:
                    lost += 1
                    continue
                column = self._columns[series] = array("d", [math.nan]) * before
            column.append(value)
        self._times.append(at_ms)
        for column in self._columns.values():
            if len(column) == before:
                column.append(math.nan)
        self._types |= found.types
        self.dropped = max(self.dropped, lost)
        self.changed = True

    def is_full(self, now_ms: int) -> bool:
        """Also when the clock was set back: the object's key is the time at which it begins."""
        lasts = self.first_ms <= now_ms < self.first_ms + _LONGEST
        return not lasts or len(self._columns) * len(self._times) >= _MOST_VALUES

    def encoded(self) -> bytes:
        columns: dict[tuple[str, tuple[tuple[str, str], ...]], bytes] = {}
        lost = self.dropped
        for raw, column in self._columns.items():
            parts = take_apart(raw)
            if parts is None:
                lost += 1
                continue
            name, labels = parts
            kept = tuple((label, value) for label, value in labels.items() if value and label not in _NOISE)
            columns[name, kept] = column.tobytes()
        series = [Series(name, dict(labels), values) for (name, labels), values in sorted(columns.items())]
        return encode(Samples(self._times.tolist(), series, self._types, lost))


class Sampler:
    """`key_of` gives the place of a node's samples that begin at a time; `node` is None until it is known."""

    def __init__(
        self,
        directory: Path,
        store: Store,
        metrics: Metrics,
        *,
        node: Callable[[], str | None],
        key_of: Callable[[str, int], str],
        interval: float,
        skip: tuple[str, ...],
        head: bool,
    ) -> None:
        self._directory = directory
        self._store = store
        self._metrics = metrics
        self._node = node
        self._key_of = key_of
        self._interval = interval
        self._skip = tuple(name.encode() for name in skip)
        self._head = head
        self._window: Window | None = None
        self._window_of = ""
        self._waiting: dict[str, bytes] = {}
        self._turn = asyncio.Lock()
        self._said: set[str] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._sample())
            both.create_task(self._ship())

    async def finish(self) -> None:
        """Brings all there is to the store; tries until it is cancelled."""
        for pause in delays(0.5, _LAST_PAUSES):
            await self.flush()
            if not self._waiting:
                return
            await asyncio.sleep(pause)

    def left(self) -> list[str]:
        """What has not reached the store, as of now."""
        return sorted(f"metrics/{key.rpartition('/')[2]}" for key in self._waiting)

    async def flush(self) -> None:
        async with self._turn:
            if self._window and self._window.changed:
                await self._encode(self._window)
        for key, data in list(self._waiting.items()):
            try:
                await self._store.put(key, data)
            except (StoreError, OSError) as error:
                self._metrics.upload_retries.labels("metrics").inc()
                log.warning("metrics could not be uploaded and are tried again", extra={"reason": str(error)})
                return
            self._metrics.uploads.labels("metrics").inc()
            self._metrics.upload_bytes.labels("metrics").inc(len(data))
            if self._waiting.get(key) is data:
                del self._waiting[key]

    async def take(self) -> None:
        """One sample, if the node's metrics can be had."""
        node = self._node()
        port = await asyncio.to_thread(metrics_port, self._directory, node) if node else None
        if node is None or port is None:
            return
        found = await self._scrape(port)
        if found is None:
            return
        if self._head and (more := await asyncio.to_thread(autoscaler_port, self._directory)):
            told = await self._scrape(more) or Scrape()
            found.values |= {name: value for name, value in told.values.items() if name.startswith(b"autoscaler_")}
            found.types |= {name: kind for name, kind in told.types.items() if name.startswith("autoscaler_")}
        now = time.time_ns() // 10**6
        async with self._turn:
            if self._window and (self._window_of != node or self._window.is_full(now)):
                await self._encode(self._window)
                self._window = None
            if self._window is None:
                self._window, self._window_of = Window(self._key_of(node, now), now), node
            before = self._window.dropped
            self._window.add(now, found)
            self._metrics.metrics_dropped.inc(max(0, self._window.dropped - before))
        self._metrics.metrics_samples.inc()

    async def _sample(self) -> None:
        while True:
            began = time.monotonic()
            await self.take()
            await asyncio.sleep(max(0.1, began + self._interval - time.monotonic()))

    async def _ship(self) -> None:
        """Soon for the first time, and not all nodes at the same moment."""
        await asyncio.sleep(random.uniform(0.5, 1.0) * _SHIP_FIRST)  # noqa: S311
        while True:
            await self.flush()
            await asyncio.sleep(_SHIP)

    async def _scrape(self, port: int) -> Scrape | None:
        try:
            return await scrape(port, self._skip, min(_SCRAPE, self._interval))
        except ScrapeError as failure:
            self._metrics.metrics_failures.labels(str(failure)).inc()
            if str(failure) not in self._said:
                self._said.add(str(failure))
                log.warning(
                    "the node's metrics could not be had; asked again, and not said again",
                    extra={"port": port, "reason": str(failure)},
                )
            return None

    async def _encode(self, window: Window) -> None:
        """Of what waits for the store, the oldest is given up when it becomes too much."""
        self._waiting[window.key] = await asyncio.to_thread(window.encoded)
        window.changed = False
        while sum(map(len, self._waiting.values())) > _MOST_WAITING and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._metrics.lost += 1
            log.error("metrics are given up: the store was away for too long", extra={"key": oldest})
