"""Closed segments become objects in the store, however long the store takes, and are deleted only then."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from rayhistory.collector.block import Damage
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.segment import Segment
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.split import Part, split
from rayhistory.collector.spool import Spool
from rayhistory.collector.supervise import delays
from rayhistory.errors import Throttled
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.keys import SNAPSHOTS
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_SEGMENTS_AT_ONCE = 4
_PUTS_AT_ONCE = 8
_TICK = 1.0


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
        self.hurry = False
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
        self._busy: dict[Path, asyncio.Task[None]] = {}

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
        pauses = delays()
        confirmed: set[str] = set()
        while True:
            try:
                async with self._segments:
                    await self._ship_once(segment, confirmed)
            except FileNotFoundError:
                log.exception("a spool file has vanished before it was uploaded", extra={"path": str(segment.path)})
                self._metrics.lost += segment.events
                await self._spool.discard(segment, stored=0)
            except Exception as error:  # noqa: BLE001 - whatever it is, the segment stays and is tried again
                self._metrics.upload_retries.labels("events").inc()
                pause = min(next(pauses), 2.0 if self.hurry else 60.0)
                if isinstance(error, Throttled):
                    pause = max(pause, min(error.retry_after, 60.0))
                log.warning(
                    "events could not be uploaded and are tried again",
                    extra={
                        "path": str(segment.path),
                        "reason": str(error) or repr(error),
                        "pause": round(pause, 1),
                    },
                )
                await asyncio.sleep(pause)
                continue
            return

    async def _ship_once(self, segment: Segment, confirmed: set[str]) -> None:
        async with self._spool.room_for_upload(segment.size if self._compressed else segment.raw):
            parts, damage = await self._upload(segment, confirmed)
        self._metrics.damaged.inc(damage.torn + damage.lost)
        self._metrics.lost += damage.lost
        for sample in damage.samples:
            await self._aside.keep("damaged", sample)
        stored = sum(part.lines for part in parts if part.category != SNAPSHOTS)
        self._metrics.stored.inc(stored)
        await self._spool.discard(segment, stored)

    async def _upload(self, segment: Segment, confirmed: set[str]) -> tuple[list[Part], Damage]:
        """What earlier attempts brought to the store is not sent again."""
        directory = segment.path.with_suffix(".parts")
        try:
            await asyncio.to_thread(_fresh, directory)
            parts, damage = await asyncio.to_thread(split, segment, directory, compressed=self._compressed)
            left = [part for part in parts if part.category not in confirmed]
            outcomes = await asyncio.gather(*(self._put(segment, part) for part in left), return_exceptions=True)
            confirmed.update(part.category for part, failure in zip(left, outcomes, strict=True) if failure is None)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))
        for failure in outcomes:
            if failure is not None:
                raise failure
        return parts, damage

    async def _put(self, segment: Segment, part: Part) -> None:
        async with self._puts:
            key = self._layout.events_key(
                self._ref_of(segment.session),
                segment.node or "unknown",
                part.category,
                segment.created_ns,
                compressed=self._compressed,
            )
            await self._store.put(key, part.path)
            self._metrics.uploads.labels("events").inc()
            self._metrics.upload_bytes.labels("events").inc(part.path.stat().st_size)


def _fresh(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
