"""Closed segments become objects in the store, however long the store takes, and are deleted only then."""

import asyncio
import errno
import functools
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from rayhistory.collector.block import Damage
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.segment import Segment
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.split import Part, split
from rayhistory.collector.spool import Spool
from rayhistory.collector.supervise import delays, pause, step_back
from rayhistory.errors import Throttled
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.keys import SNAPSHOTS
from rayhistory.storage import Store

log = logging.getLogger(__name__)
# One thread: the allocator keeps what each once used.
_thread = ThreadPoolExecutor(1, thread_name_prefix="split", initializer=step_back)

_SEGMENTS_AT_ONCE = 4
_PUTS_AT_ONCE = 8
_TICK = 1.0
_LONGEST_PAUSE = 60.0
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class Uploader:
    def __init__(
        self,
        *,
        spool: Spool,
        store: Store,
        layout: Layout,
        ref_of: Callable[[str], SessionRef],
        aside: SetAside,
        metrics: Metrics,
        compressed: bool,
    ) -> None:
        self.hurry = asyncio.Event()
        """At the end there is no time for long pauses."""
        self._spool = spool
        self._store = store
        self._layout = layout
        self._ref_of = ref_of
        self._aside = aside
        self._metrics = metrics
        self._compressed = compressed
        self._segments = asyncio.Semaphore(_SEGMENTS_AT_ONCE)
        self._puts = asyncio.Semaphore(_PUTS_AT_ONCE)
        self._in_memory = asyncio.Lock()
        self._busy: dict[Path, asyncio.Task[None]] = {}
        self._away = False
        self._asked_to_wait = 0.0
        self._pauses = delays(longest=_LONGEST_PAUSE)
        self._knocking = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self._spool.probe()
            await self._spool.rotate_due()
            await self._spool.note(bad=self._metrics.bad, lost=self._metrics.lost)
            self.begin()
            await asyncio.sleep(_TICK)

    def begin(self, session: str | None = None) -> list[asyncio.Task[None]]:
        """Sees to it that every closed segment whose node is known is on its way."""
        tasks = []
        for segment in self._spool.segments(session):
            if segment.node is None:
                continue
            task = self._busy.get(segment.path)
            if task is None:
                task = self._busy[segment.path] = asyncio.create_task(self._ship(segment))
                task.add_done_callback(lambda _, path=segment.path: self._busy.pop(path, None))  # type: ignore[misc]
            tasks.append(task)
        return tasks

    async def drain(self, session: str | None = None) -> None:
        """Returns when nothing of the session is left here."""
        while tasks := self.begin(session):
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ship(self, segment: Segment) -> None:
        """While the store is away, one segment at a time knocks for all: the rest costs neither requests nor memory."""
        confirmed: set[str] = set()
        done = not self._away and await self._try(segment, confirmed)
        while not done:
            async with self._knocking:
                if self._away:
                    await self._rest()
                    done = await self._try(segment, confirmed)
                    continue
            done = await self._try(segment, confirmed)

    async def _rest(self) -> None:
        if not await pause(self.hurry, max(next(self._pauses), min(self._asked_to_wait, _LONGEST_PAUSE))):
            return
        await asyncio.sleep(_TICK)

    async def _try(self, segment: Segment, confirmed: set[str]) -> bool:
        """Whether the segment is done with."""
        try:
            async with self._segments:
                await self._ship_once(segment, confirmed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the segment stays and is tried again
            if isinstance(error, FileNotFoundError) and not segment.path.exists():
                await self._is_lost(segment)
                return True
            self._metrics.upload_retries.labels("events").inc()
            self._away, self._asked_to_wait = True, error.retry_after if isinstance(error, Throttled) else 0.0
            log.warning(
                "events could not be uploaded and are tried again",
                extra={"path": str(segment.path), "reason": str(error) or repr(error)},
            )
            return False
        self._away, self._pauses = False, delays(longest=_LONGEST_PAUSE)
        return True

    async def _is_lost(self, segment: Segment) -> None:
        log.error("a spool file has vanished before it was uploaded", extra={"path": str(segment.path)})
        self._metrics.lost += segment.events
        await self._spool.discard(segment, stored=0, whole=False)

    async def _ship_once(self, segment: Segment, confirmed: set[str]) -> None:
        size = segment.size if self._compressed else segment.raw + segment.events  # an array has a comma per event
        async with self._spool.room_for_upload(size) as room:
            parts, damage = await self._upload(segment, confirmed, on_disk=room)
        self._metrics.damaged.inc(damage.torn + damage.lost)
        self._metrics.lost += damage.lost
        for sample in damage.samples:
            await self._aside.keep("damaged", sample)
        stored = sum(part.lines for part in parts if part.category != SNAPSHOTS)
        self._metrics.stored.inc(stored)
        await self._spool.discard(segment, stored, whole=not damage.lost)

    async def _upload(self, segment: Segment, confirmed: set[str], *, on_disk: bool) -> tuple[list[Part], Damage]:
        """What earlier attempts brought to the store is not sent again."""
        async with self._made(segment, on_disk=on_disk) as (parts, damage):
            left = [part for part in parts if part.category not in confirmed]
            outcomes = await asyncio.gather(*(self._put(segment, part) for part in left), return_exceptions=True)
            confirmed.update(part.category for part, failure in zip(left, outcomes, strict=True) if failure is None)
        for failure in outcomes:
            if failure is not None:
                raise failure
        return parts, damage

    @asynccontextmanager
    async def _made(self, segment: Segment, *, on_disk: bool) -> AsyncIterator[tuple[list[Part], Damage]]:
        """The parts of a segment: in files; or in memory, for one segment at a time. Only when a segment has left a
        full disk, there is room on it again."""
        if on_disk:
            directory = segment.path.with_suffix(".parts")
            try:
                try:
                    await asyncio.to_thread(_fresh, directory)
                    made = await self._split(segment, directory)
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                else:
                    yield made
                    return
            finally:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))
        async with self._in_memory:
            yield await self._split(segment, None)

    async def _split(self, segment: Segment, directory: Path | None) -> tuple[list[Part], Damage]:
        work = functools.partial(split, segment, directory, compressed=self._compressed, arrays=self._layout.old)
        return await asyncio.get_running_loop().run_in_executor(_thread, work)

    async def _put(self, segment: Segment, part: Part) -> None:
        async with self._puts:
            key = self._layout.events_key(
                self._ref_of(segment.session),
                segment.node or "unknown",
                part.category,
                segment.created_ns,
                compressed=self._compressed,
            )
            await self._store.put(key, part.content)
            self._metrics.uploads.labels("events").inc()
            self._metrics.upload_bytes.labels("events").inc(part.size)


def _fresh(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
