"""Log files and open events on their way to the store as packs: a few seconds behind, and one object per flush."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.packs import PackSeries, Sealed
from rayhistory.collector.supervise import delays, step_back
from rayhistory.collector.walk import told
from rayhistory.collector.watch import Watch
from rayhistory.errors import StoreError
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Catalog
from rayhistory.storage import Store

log = logging.getLogger(__name__)
T = TypeVar("T")
_thread = ThreadPoolExecutor(1, thread_name_prefix="logs", initializer=step_back)

_LONGEST_PAUSE = 30.0
_LAST_PAUSES = 2.0
_BETWEEN_LOOKS = 0.5
_UNSEEN = 100  # packs of an earlier collector that a listing may not tell of yet: their numbers are left out
_LAST_ROUNDS = 3  # files of processes that outlive Ray may go on growing


class PackShipper:
    """`prefix` gives the place of the node's packs: a raylet that comes back has another node id and its own series.

    `directory` is None as long as there are only events.
    """

    def __init__(
        self,
        directory: Path | None,
        store: Store,
        prefix: Callable[[], str],
        metrics: Metrics,
        *,
        interval: float,
        events: EventStreams | None = None,
    ) -> None:
        self._directory = directory
        self._events = events
        self._store = store
        self._prefix = prefix
        self._metrics = metrics
        self._interval = interval
        self._series: PackSeries | None = None
        self._at = ""
        self._making: asyncio.Task[Sealed | None] | None = None
        self._began: float | None = None
        self._turn = asyncio.Lock()

    def follow(self, directory: Path) -> None:
        self._directory = directory
        if self._series:
            self._series.tailer.root = directory

    async def run(self) -> None:
        with Watch() as watch:
            while True:
                due = time.monotonic() + self._interval
                await self.flush(_LONGEST_PAUSE)
                if self._series:
                    watch.follow(self._series.tailer.folders)
                await self._until(due, watch)

    async def finish(self) -> None:
        """Brings all there is to the store; tries until it is cancelled."""
        await self.flush(_LAST_PAUSES, final=True)

    async def flush(self, longest_pause: float = _LONGEST_PAUSE, *, final: bool = False) -> None:
        async with self._turn:
            self._began = self._began or time.monotonic()
            rounds = _LAST_ROUNDS if final else 1
            while rounds > 0:
                series = await self._current(longest_pause)
                sealed = await self._make(series, final=final)
                if sealed is None:
                    break
                await self._send(sealed, longest_pause)
                self._making = None
                rounds -= not sealed.more
                del sealed  # or there would be two in memory
            self._began = None

    def lag(self) -> float:
        """For how many seconds something has been on its way to the store."""
        return time.monotonic() - self._began if self._began else 0.0

    def left(self) -> list[str]:
        """Files whose last bytes are not in the store, as of now."""
        series = self._series or PackSeries(self._directory, Catalog())
        left = set(series.waiting())  # waits for a pack that is being made
        if self._making and self._making.done() and not self._making.cancelled() and not self._making.exception():
            sealed = self._making.result()
            left |= sealed.files if sealed else set()
        return [*told(series.tailer.beyond), *sorted(left)]

    async def _current(self, longest_pause: float) -> PackSeries:
        prefix = self._prefix()
        if self._series is None or (prefix != self._at and self._making is None):
            self._series = await self._found(prefix, longest_pause)
            self._at = prefix
        return self._series

    async def _found(self, prefix: str, longest_pause: float) -> PackSeries:
        """Goes on where the store says that an earlier collector was."""
        for pause in delays(0.5, longest_pause):
            reader = PackReader(self._store, prefix)
            try:
                await reader.refresh()
            except (StoreError, OSError) as error:
                await self._wait("the store cannot say which logs it has", error, pause)
                continue
            if reader.damaged:
                log.warning("packs of logs are damaged", extra={"prefix": prefix, "number": reader.damaged})
            newest = reader.newest + _UNSEEN if reader.newest >= 0 else -1
            return PackSeries(self._directory, reader.catalog, newest, self._events)
        raise AssertionError  # pauses do not end

    async def _make(self, series: PackSeries, *, final: bool) -> Sealed | None:
        """A pack is made once, also when the one who waits for it is cancelled: it is sent by who comes next."""
        if self._making is None:
            self._making = asyncio.create_task(self._on_thread(lambda: series.make(final=final)))
        try:
            sealed = await asyncio.shield(self._making)
        except Exception:
            self._making = self._series = None  # begin again from what the store has
            raise
        self._metrics.log_beyond.set(series.tailer.beyond)
        self._metrics.log_lost.inc(series.tailer.lost)
        series.tailer.lost = 0
        if sealed is None:
            self._making = None
        return sealed

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """One and the same thread: the allocator keeps what each thread once used."""
        return await asyncio.get_running_loop().run_in_executor(_thread, work)

    async def _send(self, sealed: Sealed, longest_pause: float) -> None:
        for pause in delays(0.5, longest_pause):
            try:
                await self._store.put(f"{self._at}/{sealed.name}", sealed.data)
            except (StoreError, OSError) as error:
                await self._wait("logs could not be uploaded and are tried again", error, pause)
                continue
            self._metrics.uploads.labels("logs").inc()
            self._metrics.upload_bytes.labels("logs").inc(len(sealed.data))
            return

    async def _wait(self, what: str, error: Exception, pause: float) -> None:
        self._metrics.upload_retries.labels("logs").inc()
        log.warning(what, extra={"reason": str(error) or repr(error), "pause": round(pause, 1)})
        await asyncio.sleep(pause)

    async def _until(self, due: float, watch: Watch) -> None:
        """Waits for the next flush; looks at the files earlier when some were made, moved or removed."""
        while (left := due - time.monotonic()) > 0:
            if not await watch.wait(left):
                return
            async with self._turn:
                if self._series and self._making is None:
                    await asyncio.shield(self._on_thread(self._series.scan))
            await asyncio.sleep(min(_BETWEEN_LOOKS, max(0.0, due - time.monotonic())))
