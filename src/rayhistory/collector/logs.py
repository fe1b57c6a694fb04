"""The session's log files: shipped as packs while it runs, and whole, in KubeRay's place, at its end; or one of both.

Where only whole files are wanted, a growing one is written again only when it has grown by a quarter or has been
quiet, so that the bytes written stay in proportion to its size. At the end, everything that differs is written.
"""

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from rayhistory.collector.eventstreams import EventStreams
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.shipping import PackShipper
from rayhistory.collector.supervise import delays
from rayhistory.errors import ObjectNotFound, StoreError
from rayhistory.settings import Settings
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_PUTS_AT_ONCE = 4
_GROWTH = 1.25
_MOST_ROUNDS = 3  # at the end: files of processes that outlive Ray may go on growing


class LogFile(msgspec.Struct, frozen=True):
    name: str
    """Path below the logs directory."""
    path: Path
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
        """Brings all that is left to the store, and repeats what fails until it is cancelled."""

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
        return self._packs.left()

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
            files = await asyncio.to_thread(lambda: list(find_logs(self._directory)))
            due = [file for file in files if self._is_due(file)]
            self._seen = {file.name: file.version for file in files}
            await self._ship_all(due)

    async def finish(self) -> None:
        """Ships all that differs, the most valuable first, and repeats what fails until it is cancelled."""
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
        return [file.name for file in self._differing()]

    def lag(self) -> float:
        return 0.0

    def _differing(self) -> list[LogFile]:
        files = [file for file in find_logs(self._directory) if self._largest is None or file.size <= self._largest]
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
        """Returns how many failed."""
        places = asyncio.Semaphore(_PUTS_AT_ONCE)

        async def ship(file: LogFile) -> bool:
            async with places:
                return await self._ship(file)

        return (await asyncio.gather(*map(ship, files))).count(False)

    async def _ship(self, file: LogFile) -> bool:
        try:
            await self._store.put(self._key_of(file.name), file.path)
        except ObjectNotFound:
            return not file.path.exists()  # Ray has rotated it, or moved it to old/
        except (StoreError, OSError) as error:
            self._metrics.upload_retries.labels("logs").inc()
            log.warning("a log file could not be uploaded", extra={"file": file.name, "reason": str(error)})
            return False
        self._shipped[file.name] = file.version
        self._metrics.uploads.labels("logs").inc()
        self._metrics.upload_bytes.labels("logs").inc(file.size)
        return True


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


def find_logs(directory: Path | None) -> Iterator[LogFile]:
    """Regular files, and links to such files inside the directory: a link must not lead out of it."""
    if directory is None:
        return
    root = os.path.realpath(directory)
    folders = [root]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif file := _log_file(entry, root):
                        yield file
        except OSError:
            continue


def _log_file(entry: os.DirEntry[str], root: str) -> LogFile | None:
    try:
        path = os.path.realpath(entry.path, strict=True)
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a Path per file and round costs more than the rest
        name = os.path.relpath(entry.path, root)
        name.encode()
    except (OSError, UnicodeEncodeError):
        return None
    inside = os.path.commonpath([root, path]) == root
    if not inside or not stat.S_ISREG(found.st_mode):
        return None
    return LogFile(name, Path(path), found.st_size, found.st_mtime_ns)
