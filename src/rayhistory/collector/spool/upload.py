"""Upload closed segments to the store, and delete each one when all its objects are stored."""

import asyncio
import errno
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rayhistory.collector.held_directory import stable_path
from rayhistory.collector.spool.block import Damage
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.quarantine import Quarantine
from rayhistory.collector.spool.segment import Segment
from rayhistory.collector.spool.segment_objects import SegmentObject, split_segment
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.supervise import backoff_delays, lower_thread_priority, wait_for_event
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreThrottled
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.keys import DASHBOARD_RESPONSES
from rayhistory.storage import Store

log = logging.getLogger(__name__)
# One thread only: the allocator keeps the peak memory of each thread.
_split_thread = ThreadPoolExecutor(1, thread_name_prefix="split", initializer=lower_thread_priority)

_MAX_CONCURRENT_SEGMENTS = 4
_MAX_CONCURRENT_PUTS = 8
_POLL_INTERVAL_S = 1.0
_MAX_RETRY_DELAY_S = 60.0
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


class Uploader:
    """Uploads segments concurrently, and retries until the store accepts them."""

    def __init__(
        self,
        *,
        spool: Spool,
        store: Store,
        layout: Layout,
        ref_of: Callable[[str], SessionRef],
        quarantine: Quarantine,
        telemetry: Telemetry,
        compressed: bool,
    ) -> None:
        self.shutting_down = asyncio.Event()
        """An event that is set during shutdown. Retries are more frequent then."""
        self._spool = spool
        self._store = store
        self._layout = layout
        self._ref_of = ref_of
        self._quarantine = quarantine
        self._telemetry = telemetry
        self._compressed = compressed
        self._segment_slots = asyncio.Semaphore(_MAX_CONCURRENT_SEGMENTS)
        self._put_slots = asyncio.Semaphore(_MAX_CONCURRENT_PUTS)
        self._in_memory_lock = asyncio.Lock()
        self._uploads: dict[Path, asyncio.Task[None]] = {}
        self._store_down = False
        self._retry_after = 0.0
        self._delays = backoff_delays(max_delay=_MAX_RETRY_DELAY_S)
        self._retry_lock = asyncio.Lock()

    async def run(self) -> None:
        """Rotate old segments and upload closed segments, until cancelled."""
        while True:
            await self._spool.probe()
            await self._spool.rotate_due()
            await self._spool.record_totals(
                quarantined=self._telemetry.quarantined_count, lost=self._telemetry.lost_count
            )
            self.start_uploads()
            await asyncio.sleep(_POLL_INTERVAL_S)

    def start_uploads(self, session: str | None = None) -> list[asyncio.Task[None]]:
        """Start an upload for each closed segment whose node is known; return all running uploads."""
        tasks = []
        for segment in self._spool.segments(session):
            if segment.node is None:
                continue
            task = self._uploads.get(segment.path)
            if task is None:
                task = self._uploads[segment.path] = asyncio.create_task(self._upload_with_retries(segment))
                task.add_done_callback(lambda _, path=segment.path: self._uploads.pop(path, None))  # type: ignore[misc]
            tasks.append(task)
        return tasks

    async def drain(self, session: str | None = None) -> None:
        """Wait until all closed segments of the session, or of all sessions, are uploaded."""
        while tasks := self.start_uploads(session):
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        tasks = list(self._uploads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _upload_with_retries(self, segment: Segment) -> None:
        """Upload a segment. While the store is unavailable, only one segment at a time is retried, to save requests."""
        stored_categories: set[str] = set()
        done = not self._store_down and await self._try_upload(segment, stored_categories)
        while not done:
            async with self._retry_lock:
                if self._store_down:
                    await self._wait_before_retry()
                    done = await self._try_upload(segment, stored_categories)
                    continue
            done = await self._try_upload(segment, stored_categories)

    async def _wait_before_retry(self) -> None:
        delay = max(next(self._delays), min(self._retry_after, _MAX_RETRY_DELAY_S))
        if await wait_for_event(self.shutting_down, delay):
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _try_upload(self, segment: Segment, stored_categories: set[str]) -> bool:
        """Upload a segment once. Return False if it must be retried."""
        try:
            async with self._segment_slots:
                await self._upload_and_discard(segment, stored_categories)
        except Exception as error:  # noqa: BLE001 - the segment stays in the spool and is retried
            if isinstance(error, FileNotFoundError) and not segment.folder.exists(segment.name):
                await self._discard_lost(segment)
                return True
            self._telemetry.upload_retries.labels("events").inc()
            self._store_down, self._retry_after = True, error.retry_after if isinstance(error, StoreThrottled) else 0.0
            log.warning(
                "event upload failed, retrying",
                extra={"path": str(segment.path), "reason": str(error) or repr(error)},
            )
            return False
        self._store_down, self._delays = False, backoff_delays(max_delay=_MAX_RETRY_DELAY_S)
        return True

    async def _discard_lost(self, segment: Segment) -> None:
        log.error(
            "spool segment was deleted before its upload, events that are not in a pack are lost",
            extra={"path": str(segment.path)},
        )
        self._telemetry.lost_count += segment.events
        await self._spool.discard(segment, stored=0, complete=False)

    async def _upload_and_discard(self, segment: Segment, stored_categories: set[str]) -> None:
        size = (
            segment.size if self._compressed else segment.raw_size + segment.events
        )  # an array adds a comma per event
        async with self._spool.upload_space.reserve(size) as on_disk:
            objects, damage = await self._upload(segment, stored_categories, on_disk=on_disk)
        self._telemetry.spool_damaged.inc(damage.torn + damage.lost)
        self._telemetry.lost_count += damage.lost
        for sample in damage.samples:
            await self._quarantine.add("damaged_segment", sample)
        stored = sum(each.lines for each in objects if each.category != DASHBOARD_RESPONSES)
        self._telemetry.events_stored.inc(stored)
        await self._spool.discard(segment, stored, complete=not damage.lost)

    async def _upload(
        self, segment: Segment, stored_categories: set[str], *, on_disk: bool
    ) -> tuple[list[SegmentObject], Damage]:
        """Upload the objects of a segment, except those that earlier attempts have stored."""
        async with self._objects(segment, on_disk=on_disk) as (objects, damage):
            remaining = [each for each in objects if each.category not in stored_categories]
            outcomes = await asyncio.gather(*(self._put(segment, each) for each in remaining), return_exceptions=True)
            stored_categories.update(
                each.category for each, failure in zip(remaining, outcomes, strict=True) if failure is None
            )
        for failure in outcomes:
            if failure is not None:
                raise failure
        return objects, damage

    @asynccontextmanager
    async def _objects(self, segment: Segment, *, on_disk: bool) -> AsyncIterator[tuple[list[SegmentObject], Damage]]:
        """Make the objects of a segment in files or, for one segment at a time, in memory.

        A full disk must not stop uploads, because only they free it.
        """
        if on_disk:
            directory = segment.folder.folder(segment.path.with_suffix(".parts").name)
            try:
                try:
                    await asyncio.to_thread(_recreate, directory)
                    objects = await self._split(segment, directory)
                except OSError as error:
                    if error.errno not in _DISK_FULL:
                        raise
                else:
                    yield objects
                    return
            finally:
                await asyncio.shield(asyncio.to_thread(_remove, directory))
        async with self._in_memory_lock:
            yield await self._split(segment, None)

    async def _split(self, segment: Segment, directory: PrivateDirectory | None) -> tuple[list[SegmentObject], Damage]:
        work = functools.partial(
            split_segment, segment, directory, compressed=self._compressed, arrays=self._layout.writes_v1_6
        )
        return await asyncio.get_running_loop().run_in_executor(_split_thread, work)

    async def _put(self, segment: Segment, target: SegmentObject) -> None:
        async with self._put_slots:
            key = self._layout.events_key(
                self._ref_of(segment.session),
                segment.node or "unknown",
                target.category,
                segment.created_ns,
                compressed=self._compressed,
            )
            if target.directory:
                with target.open() as file, stable_path(os.dup(file.fileno()), target.path) as path:
                    await self._store.put(key, path)
            else:
                await self._store.put(key, target.data)
            self._telemetry.uploads.labels("events").inc()
            self._telemetry.upload_bytes.labels("events").inc(target.size)


def _recreate(directory: PrivateDirectory) -> None:
    _remove(directory)
    directory.make()


def _remove(directory: PrivateDirectory) -> None:
    with suppress(OSError):
        directory.clear()
        directory.remove()
