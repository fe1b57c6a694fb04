"""The session's log files: shipped as packs while it runs, and whole, in KubeRay's place, at its end; or one of both.

Where only whole files are wanted, a growing one is written again only when it has grown by a quarter or has been
quiet, so that the bytes written stay in proportion to its size. At the end, everything that differs is written.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.shipping import PackShipper
from rayhistory.collector.supervise import delays
from rayhistory.collector.walk import MOST_FILES, open_inside, told, walk
from rayhistory.errors import StoreDenied, StoreError, StoreUnavailable
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_PUTS_AT_ONCE = 4
_GROWTH = 1.25
_MOST_ROUNDS = 3  # at the end: files of processes that outlive Ray may go on growing, and some can never be put
_STRAGGLERS = 600.0  # a store's thread may be about to open a file whose upload is cancelled: its number must stay


class LogFile(msgspec.Struct, frozen=True):
    name: str
    """Path below the logs directory."""
    real: str
    """That of the file itself: for a link it is another."""
    size: int
    modified_ns: int

    @property
    def version(self) -> tuple[int, int]:
        return self.size, self.modified_ns


class Shipper(Protocol):
    def follow(self, directory: Path) -> None:
        """The logs are there."""

    async def run(self) -> None:
        """While the session runs; never returns."""

    async def finish(self) -> None:
        """Brings all that is left to the store, and tries until it is cancelled what the store cannot take now."""

    def left(self) -> list[str]:
        """Files whose last state is not in the store."""

    def lag(self) -> float:
        """For how many seconds something has been on its way to the store."""


class PackAndPlainShipper:
    """Packs while the session runs; at its end, each file that is not too large is written whole as well."""

    def __init__(self, packs: PackShipper, plain: "LogShipper") -> None:
        self._packs = packs
        self._plain = plain

    def follow(self, directory: Path) -> None:
        self._packs.follow(directory)
        self._plain.follow(directory)

    async def run(self) -> None:
        await self._packs.run()

    async def finish(self) -> None:
        await self._packs.finish()
        await self._plain.finish()

    def left(self) -> list[str]:
        return sorted({*self._packs.left(), *self._plain.left()})

    def lag(self) -> float:
        return self._packs.lag()


def make_shipper(
    directory: Path | None,
    settings: Settings,
    store: Store,
    metrics: Metrics,
    *,
    packs_at: Callable[[], str],
    key_of: Callable[[str], str],
    events: EventStreams | None = None,
) -> Shipper:
    interval = settings.log_interval
    if settings.log_layout == "plain":
        return LogShipper(directory, store, key_of, metrics, interval=interval)
    packs = PackShipper(directory, store, packs_at, metrics, interval=interval, events=events)
    if settings.log_layout == "packs":
        return packs
    plain = LogShipper(directory, store, key_of, metrics, interval=interval, largest=settings.log_plain_limit)
    return PackAndPlainShipper(packs, plain)


class LogShipper:
    """`key_of` gives the key for a file's name: the caller knows the session and the node."""

    def __init__(
        self,
        directory: Path | None,
        store: Store,
        key_of: Callable[[str], str],
        metrics: Metrics,
        *,
        interval: float,
        largest: int | None = None,
    ) -> None:
        self._directory = directory
        self._largest = largest
        self._store = store
        self._key_of = key_of
        self._metrics = metrics
        self._interval = interval
        self._beyond = 0
        self._shipped: dict[str, tuple[int, int]] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._turn = asyncio.Lock()

    def follow(self, directory: Path) -> None:
        self._directory = directory

    async def run(self) -> None:
        while True:
            await self.ship_due()
            await asyncio.sleep(self._interval)

    async def ship_due(self) -> None:
        """One round while the session runs; what fails waits for the next."""
        async with self._turn:
            files = await asyncio.to_thread(self._find)
            due = [file for file in files if self._is_due(file)]
            self._seen = {file.name: file.version for file in files}
            await self._ship_all(due)

    async def finish(self) -> None:
        """Ships all that differs, the most valuable first, and tries until it is cancelled what the store cannot take
        now; what can be read by nobody, or has no place in any store, is only told of."""
        async with self._turn:
            for attempt, pause in enumerate(delays(0.5, 2.0)):
                left = await asyncio.to_thread(self._differing)
                failed = await self._ship_all(left)
                if not left or (not failed and attempt >= _MOST_ROUNDS):
                    return
                if failed:
                    await asyncio.sleep(pause)

    def left(self) -> list[str]:
        """Files whose last state is not in the store."""
        return [*(file.name for file in self._differing()), *told(self._beyond)]

    def lag(self) -> float:
        return 0.0

    def _find(self) -> list[LogFile]:
        files, beyond = find_logs(self._directory)
        if beyond and not self._beyond:
            log.warning("there are more log files than are written whole", extra={"files_beyond": beyond})
        self._beyond = beyond
        self._metrics.log_beyond.set(beyond)
        return files

    def _differing(self) -> list[LogFile]:
        files = [file for file in self._find() if self._largest is None or file.size <= self._largest]
        return [file for file in by_value(files) if self._shipped.get(file.name) != file.version]

    def _is_due(self, file: LogFile) -> bool:
        shipped = self._shipped.get(file.name)
        if shipped is None:
            return True
        if shipped == file.version:
            return False
        quiet = self._seen.get(file.name) == file.version
        return quiet or file.size < shipped[0] or file.size >= max(1, shipped[0]) * _GROWTH

    async def _ship_all(self, files: list[LogFile]) -> int:
        """Returns how many are worth trying again."""
        waiting = iter(files)

        async def ship() -> int:
            return [await self._ship(file) for file in waiting].count(False)

        return sum(await asyncio.gather(*(ship() for _ in range(_PUTS_AT_ONCE))))

    async def _ship(self, file: LogFile) -> bool:
        """False when it is worth waiting and trying again."""
        try:
            descriptor = open_inside(str(self._directory), file.real)
        except FileNotFoundError:
            return True  # Ray has rotated it, or moved it to old/
        except OSError as error:
            self._could_not(file, error)
            return True
        with _held(descriptor) as path:
            try:
                await self._store.put(self._key_of(file.name), path or Path(str(self._directory), file.real))
            except (StoreError, OSError) as error:
                self._could_not(file, error)
                return not isinstance(error, StoreUnavailable | StoreDenied | OSError)
        self._shipped[file.name] = file.version
        self._metrics.uploads.labels("logs").inc()
        self._metrics.upload_bytes.labels("logs").inc(file.size)
        return True

    def _could_not(self, file: LogFile, error: Exception) -> None:
        self._metrics.upload_retries.labels("logs").inc()
        log.warning("a log file could not be uploaded", extra={"file": file.name, "reason": str(error)})


@contextmanager
def _held(descriptor: int) -> Iterator[Path | None]:
    """The path of an open file, whatever takes the place of its name; None where the system has no such paths."""
    path, wait = Path(f"/proc/self/fd/{descriptor}"), 0.0
    try:
        yield path if path.exists() else None
    except asyncio.CancelledError:
        wait = _STRAGGLERS
        raise
    finally:
        asyncio.get_running_loop().call_later(wait, os.close, descriptor)


_JOB_DRIVER = re.compile(r"(?:.*/)?job-driver-")
_WORKER = re.compile(r"((?:.*/)?worker-.+)\.(out|err)")


def by_value(files: Iterable[LogFile]) -> list[LogFile]:
    """Drivers of jobs, then workers that wrote to stderr, then the rest; among equals, small files first."""
    files = list(files)
    complained = {match[1] for file in files if file.size and (match := _WORKER.match(file.name)) and match[2] == "err"}

    def rank(file: LogFile) -> int:
        if _JOB_DRIVER.match(file.name):
            return 0
        worker = _WORKER.match(file.name)
        return 1 if worker and worker[1] in complained else 2

    return sorted(files, key=lambda file: (rank(file), file.size))


def find_logs(directory: Path | None) -> tuple[list[LogFile], int]:
    """Regular files and links to such files inside the directory; and how many more there are."""
    walked = walk(str(directory), MOST_FILES) if directory else None
    if walked is None:
        return [], 0
    found = [*((entry.name, entry) for entry in walked.entries), *walked.links]
    return [LogFile(name, entry.name, entry.size, entry.modified_ns) for name, entry in found], walked.beyond
