"""Upload log files and the open segment as packs: one object per flush, every few seconds."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rayhistory.collector.logs.directory_watcher import DirectoryWatcher
from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.pack_series import BuiltPack, PackSeries
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.logs.walk import describe_excess
from rayhistory.collector.supervise import backoff_delays, lower_thread_priority
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreError
from rayhistory.packs.pack_directory import PackDirectory
from rayhistory.packs.pack_reader import PackReader
from rayhistory.storage import Store

log = logging.getLogger(__name__)
T = TypeVar("T")
_thread = ThreadPoolExecutor(1, thread_name_prefix="logs", initializer=lower_thread_priority)

_MAX_RETRY_DELAY_S = 30.0
_MAX_FINAL_RETRY_DELAY_S = 2.0
_MIN_SCAN_INTERVAL_S = 0.5
_MAX_FINAL_ROUNDS = 3  # processes that outlive Ray may keep writing


class PackShipper:
    """Uploads the packs of one session. `prefix` returns the key prefix, which depends on the node id.

    `directory` is None while the session is known only from its events.
    """

    def __init__(
        self,
        directory: Path | None,
        store: Store,
        prefix: Callable[[], str],
        telemetry: Telemetry,
        *,
        starts: SeriesStarts,
        interval: float,
        events: EventStreams | None = None,
    ) -> None:
        self._directory = directory
        self._events = events
        self._store = store
        self._prefix = prefix
        self._telemetry = telemetry
        self._starts = starts
        self._interval = interval
        self._series: PackSeries | None = None
        self._series_prefix = ""
        self._pending: asyncio.Task[BuiltPack | None] | None = None
        """The pack that is being built or uploaded."""
        self._flush_started: float | None = None
        self._lock = asyncio.Lock()

    def follow(self, directory: Path) -> None:
        self._directory = directory
        if self._series:
            self._series.tailer.root = directory

    async def run(self) -> None:
        with DirectoryWatcher() as watcher:
            while True:
                due = time.monotonic() + self._interval
                await self.flush(_MAX_RETRY_DELAY_S)
                if self._series:
                    watcher.follow(self._series.tailer.folders)
                await self._scan_until(due, watcher)

    async def finish(self) -> None:
        await self.flush(_MAX_FINAL_RETRY_DELAY_S, final=True)

    async def flush(self, max_delay: float = _MAX_RETRY_DELAY_S, *, final: bool = False) -> None:
        """Build and upload packs until all new content is in the store; retry until cancelled."""
        async with self._lock:
            self._flush_started = self._flush_started or time.monotonic()
            rounds = _MAX_FINAL_ROUNDS if final else 1
            while rounds > 0:
                series = await self._current_series(max_delay)
                pack = await self._build(series, final=final)
                if pack is None:
                    break
                await self._upload(pack, max_delay)
                self._pending = None
                rounds -= not pack.has_more
                del pack  # or there would be two in memory
            self._flush_started = None

    def lag(self) -> float:
        """Return the seconds that the current flush has taken so far."""
        return time.monotonic() - self._flush_started if self._flush_started else 0.0

    def unshipped(self) -> list[str]:
        series = self._series or PackSeries(self._directory, PackDirectory())
        names = set(series.unshipped())  # blocks while a pack is being built
        pending = self._pending
        if pending and pending.done() and not pending.cancelled() and not pending.exception():
            pack = pending.result()
            names |= pack.files if pack else set()
        return [*describe_excess(series.tailer.excess), *sorted(names)]

    async def _current_series(self, max_delay: float) -> PackSeries:
        prefix = self._prefix()
        if self._series is None or (prefix != self._series_prefix and self._pending is None):
            self._series = await self._open_series(prefix, max_delay)
            self._series_prefix = prefix
        return self._series

    async def _open_series(self, prefix: str, max_delay: float) -> PackSeries:
        """Continue the series of packs in the store, which an earlier collector may have started."""
        for delay in backoff_delays(0.5, max_delay):
            reader = PackReader(self._store, prefix)
            try:
                await reader.refresh()
            except (StoreError, OSError) as error:
                await self._wait("listing stored packs failed, retrying", error, delay)
                continue
            if reader.damaged:
                log.warning(
                    "cannot read damaged log packs in the store, their log lines are lost",
                    extra={"prefix": prefix, "count": reader.damaged},
                )
            newest = await asyncio.to_thread(self._starts.skip_used, prefix, reader.newest_number)
            return PackSeries(self._directory, reader.directory, newest, self._events)
        raise AssertionError  # the delays never end

    async def _build(self, series: PackSeries, *, final: bool) -> BuiltPack | None:
        """Build a pack, or return the pack of a cancelled flush, because its bytes are in no other pack."""
        if self._pending is None:
            self._pending = asyncio.create_task(self._on_thread(lambda: series.build(final=final)))
        try:
            pack = await asyncio.shield(self._pending)
        except Exception:
            self._pending = self._series = None  # resume from the store
            raise
        self._telemetry.log_files_over_limit.set(series.tailer.excess)
        self._telemetry.log_bytes_lost.inc(series.tailer.lost_bytes)
        series.tailer.lost_bytes = 0
        if pack is None:
            self._pending = None
        return pack

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Run all work in one thread, because the allocator keeps the freed memory of each thread."""
        return await asyncio.get_running_loop().run_in_executor(_thread, work)

    async def _upload(self, pack: BuiltPack, max_delay: float) -> None:
        for delay in backoff_delays(0.5, max_delay):
            try:
                await self._store.put(f"{self._series_prefix}/{pack.name}", pack.data)
            except (StoreError, OSError) as error:
                await self._wait("pack upload failed, retrying", error, delay)
                continue
            self._telemetry.uploads.labels("logs").inc()
            self._telemetry.upload_bytes.labels("logs").inc(len(pack.data))
            return

    async def _wait(self, message: str, error: Exception, delay: float) -> None:
        self._telemetry.upload_retries.labels("logs").inc()
        log.warning(message, extra={"reason": str(error) or repr(error), "delay_s": round(delay, 1)})
        await asyncio.sleep(delay)

    async def _scan_until(self, due: float, watcher: DirectoryWatcher) -> None:
        """Wait for the next flush; scan earlier when files were created, moved or removed."""
        while (remaining := due - time.monotonic()) > 0:
            if not await watcher.wait(remaining):
                return
            async with self._lock:
                if self._series and self._pending is None:
                    await asyncio.shield(self._on_thread(self._series.scan))
            await asyncio.sleep(min(_MIN_SCAN_INTERVAL_S, max(0.0, due - time.monotonic())))
