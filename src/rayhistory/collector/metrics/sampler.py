"""Sample a node's metrics into objects of up to an hour.

The object of the current hour is overwritten every minute, so a vanished node loses a minute of metrics. If the store
is unavailable, compressed objects are kept in memory.
"""

import asyncio
import logging
import math
import random
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from rayhistory.collector.metrics.scrape import MAX_NAME_BYTES, Scrape, ScrapeError, parse_series, scrape
from rayhistory.collector.session.ray_discovery import autoscaler_port, metrics_port
from rayhistory.collector.supervise import backoff_delays
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreError
from rayhistory.metrics.samples import MAX_LABELS, MAX_SERIES, SampledSeries, Samples, encode
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_SCRAPE_TIMEOUT_S = 10.0
_EARLY_S, _EARLY_INTERVAL_S = 180.0, 5.0
"""Duration of a session's early phase, and the sampling interval in it: short sessions need charts, too."""
_UPLOAD_INTERVAL_S = 60.0
_MAX_FIRST_UPLOAD_DELAY_S = 20.0
_MAX_WINDOW_MS = 3_600_000
_MAX_WINDOW_VALUES = 500_000
_MAX_TYPES_SIZE = 1 << 20
_MAX_PENDING_BYTES = 8 * 2**20
_MAX_FINAL_RETRY_DELAY_S = 2.0

# The same for all series of the session: in the object's key, or of no use.
_CONSTANT_LABELS = {"SessionName", "Version", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}


def sample_interval(age_s: float, interval_s: float) -> float:
    """Return the seconds until the next sample of a session of this age."""
    return min(interval_s, _EARLY_INTERVAL_S) if age_s < _EARLY_S else interval_s


class SampleWindow:
    """Samples since `first_ms`: one column per series, all of the same length."""

    def __init__(self, key: str, node: str, first_ms: int) -> None:
        self.key = key
        self.node = node
        self.first_ms = first_ms
        self.dropped = 0
        self.changed = False
        self._times = array("q")
        self._columns: dict[bytes, array[float]] = {}
        self._types: dict[str, str] = {}
        self._names_size = self._types_size = 0
        """Bytes of all names, and of all types. Both are limited, because a job can expose new names in each sample."""

    def add(self, at_ms: int, result: Scrape) -> None:
        rows, dropped = len(self._times), result.dropped
        for series, value in result.values.items():
            column = self._columns.get(series)
            if column is None:
                size = self._names_size + len(series)
                if len(self._columns) >= MAX_SERIES or size > MAX_NAME_BYTES:
                    dropped += 1
                    continue
                self._names_size = size
                column = self._columns[series] = array("d", [math.nan]) * rows
            column.append(value)
        self._times.append(at_ms)
        for column in self._columns.values():
            if len(column) == rows:
                column.append(math.nan)
        for family, kind in result.types.items():
            size = self._types_size + len(family) + len(kind)
            if family not in self._types and size <= _MAX_TYPES_SIZE:
                self._types[family], self._types_size = kind, size
        self.dropped = max(self.dropped, dropped)
        self.changed = True

    def is_full(self, now_ms: int) -> bool:
        """Return whether the window is full.

        It is also full if the clock was set back, because the object's key contains the time of the first sample.
        """
        is_in_time = self.first_ms <= now_ms < self.first_ms + _MAX_WINDOW_MS
        return not is_in_time or len(self._columns) * len(self._times) >= _MAX_WINDOW_VALUES

    def encode(self) -> bytes:
        columns: dict[tuple[str, tuple[tuple[str, str], ...]], bytes] = {}
        dropped = self.dropped
        for text, column in self._columns.items():
            parsed = parse_series(text)
            if parsed is None:
                dropped += 1
                continue
            name, labels = parsed
            useful = tuple((label, value) for label, value in labels.items() if value and label not in _CONSTANT_LABELS)
            if len(useful) > MAX_LABELS:
                dropped += 1
                continue
            columns[name, useful] = column.tobytes()
        series = [SampledSeries(name, dict(labels), values) for (name, labels), values in sorted(columns.items())]
        return encode(Samples(self._times.tolist(), series, self._types, dropped))


class MetricsSampler:
    """Samples the metrics of one node.

    `key_of` returns the object key; `node` returns None until the node id is known.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        telemetry: Telemetry,
        *,
        node: Callable[[], str | None],
        key_of: Callable[[str, int], str],
        interval: float,
        skip: tuple[str, ...],
        head: bool,
    ) -> None:
        self._directory = directory
        self._store = store
        self._telemetry = telemetry
        self._node = node
        self._key_of = key_of
        self._interval = interval
        self._skip = tuple(name.encode() for name in skip)
        self._head = head
        self._window: SampleWindow | None = None
        self._pending: dict[str, bytes] = {}
        """Encoded objects that are not uploaded yet, by key."""
        self._lock = asyncio.Lock()
        self._logged_failures: set[str] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample_periodically())
            tasks.create_task(self._upload_periodically())

    async def finish(self) -> None:
        """Upload all metrics; retry until cancelled."""
        for delay in backoff_delays(0.5, _MAX_FINAL_RETRY_DELAY_S):
            await self.flush()
            if not self._pending:
                return
            await asyncio.sleep(delay)

    def unshipped(self) -> list[str]:
        """List objects with metrics that are not in the store."""
        return sorted(f"metrics/{key.rpartition('/')[2]}" for key in self._pending)

    async def flush(self) -> None:
        async with self._lock:
            if self._window and self._window.changed:
                await self._encode(self._window)
        for key, data in list(self._pending.items()):
            try:
                await self._store.put(key, data)
            except (StoreError, OSError) as error:
                self._telemetry.upload_retries.labels("metrics").inc()
                log.warning("metrics upload failed, retrying", extra={"reason": str(error)})
                return
            self._telemetry.uploads.labels("metrics").inc()
            self._telemetry.upload_bytes.labels("metrics").inc(len(data))
            if self._pending.get(key) is data:
                del self._pending[key]

    async def sample(self) -> None:
        """Take one sample, if the node exposes metrics."""
        node = self._node()
        port = await asyncio.to_thread(metrics_port, self._directory, node) if node else None
        if node is None or port is None:
            return
        result = await self._scrape(port)
        if result is None:
            return
        if self._head and (extra_port := await asyncio.to_thread(autoscaler_port, self._directory)):
            extra = await self._scrape(extra_port) or Scrape()
            result.values |= {name: value for name, value in extra.values.items() if name.startswith(b"autoscaler_")}
            result.types |= {name: kind for name, kind in extra.types.items() if name.startswith("autoscaler_")}
        now = time.time_ns() // 10**6
        async with self._lock:
            if self._window and (self._window.node != node or self._window.is_full(now)):
                await self._encode(self._window)
                self._window = None
            if self._window is None:
                self._window = SampleWindow(self._key_of(node, now), node, now)
            dropped_before = self._window.dropped
            self._window.add(now, result)
            self._telemetry.metrics_series_dropped.inc(max(0, self._window.dropped - dropped_before))
        self._telemetry.metrics_scrapes.inc()

    async def _sample_periodically(self) -> None:
        begin = time.monotonic()
        while True:
            started = time.monotonic()
            await self.sample()
            interval = sample_interval(started - begin, self._interval)
            await asyncio.sleep(max(0.1, started + interval - time.monotonic()))

    async def _upload_periodically(self) -> None:
        """Upload soon for the first time, with jitter so that nodes do not upload in step."""
        await asyncio.sleep(random.uniform(0.5, 1.0) * _MAX_FIRST_UPLOAD_DELAY_S)  # noqa: S311
        while True:
            await self.flush()
            await asyncio.sleep(_UPLOAD_INTERVAL_S)

    async def _scrape(self, port: int) -> Scrape | None:
        try:
            return await scrape(port, self._skip, min(_SCRAPE_TIMEOUT_S, self._interval))
        except ScrapeError as failure:
            reason = str(failure)
            self._telemetry.metrics_scrape_failures.labels(reason).inc()
            if reason not in self._logged_failures:
                self._logged_failures.add(reason)
                log.warning(
                    "metrics scrape failed, retrying (logged once per reason)", extra={"port": port, "reason": reason}
                )
            return None

    async def _encode(self, window: SampleWindow) -> None:
        """Encode a window for upload; drop the oldest pending objects over the limit."""
        self._pending[window.key] = await asyncio.to_thread(window.encode)
        window.changed = False
        while sum(map(len, self._pending.values())) > _MAX_PENDING_BYTES and len(self._pending) > 1:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            self._telemetry.lost_count += 1
            log.error("store is still unavailable, dropping the oldest buffered metrics", extra={"key": oldest})
