"""Upload each log file as one object, under KubeRay's key.

A growing file is uploaded again only when it has grown by a quarter, or has stopped growing. So the uploaded bytes
stay proportional to its size. At the end, every file that differs from its object is uploaded.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from rayhistory.collector.held_directory import stable_path
from rayhistory.collector.logs.walk import MAX_FILES, describe_excess, open_inside, walk
from rayhistory.collector.supervise import backoff_delays
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreDenied, StoreError, StoreUnavailable
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_MAX_CONCURRENT_UPLOADS = 4
_GROWTH_FACTOR = 1.25
_MAX_FINAL_ROUNDS = 3  # processes that outlive Ray may keep writing, and some files can never be uploaded


class LocalLogFile(msgspec.Struct, frozen=True):
    name: str
    """Path of the log file below the logs directory."""
    target: str
    """Path of the file itself; it differs from `name` for a link."""
    size: int
    modified_ns: int

    @property
    def version(self) -> tuple[int, int]:
        return self.size, self.modified_ns


class PlainShipper:
    """Uploads the log files of one directory; `key_of` returns the object key of a file's name."""

    def __init__(
        self,
        directory: Path | None,
        store: Store,
        key_of: Callable[[str], str],
        telemetry: Telemetry,
        *,
        interval: float,
        max_file_bytes: int | None = None,
    ) -> None:
        self._directory = directory
        self._max_file_bytes = max_file_bytes
        self._store = store
        self._key_of = key_of
        self._telemetry = telemetry
        self._interval = interval
        self._excess = 0
        self._shipped: dict[str, tuple[int, int]] = {}
        self._last_seen: dict[str, tuple[int, int]] = {}
        self._lock = asyncio.Lock()

    def follow(self, directory: Path) -> None:
        self._directory = directory

    async def run(self) -> None:
        while True:
            await self.ship_due()
            await asyncio.sleep(self._interval)

    async def ship_due(self) -> None:
        """Upload files that are due, once. Failed uploads are retried in the next round."""
        async with self._lock:
            files = await asyncio.to_thread(self._find)
            due = [file for file in files if self._is_due(file)]
            self._last_seen = {file.name: file.version for file in files}
            await self._ship_all(due)

    async def finish(self) -> None:
        """Upload all changed files, the most important first. Retry until cancelled.

        Files that cannot be read, or whose names the store does not accept, are logged and skipped.
        """
        async with self._lock:
            for attempt, delay in enumerate(backoff_delays(0.5, 2.0)):
                changed = await asyncio.to_thread(self._changed)
                failed = await self._ship_all(changed)
                if not changed or (not failed and attempt >= _MAX_FINAL_ROUNDS):
                    return
                if failed:
                    await asyncio.sleep(delay)

    def unshipped(self) -> list[str]:
        return [*(file.name for file in self._changed()), *describe_excess(self._excess)]

    def lag(self) -> float:
        return 0.0

    def _find(self) -> list[LocalLogFile]:
        files, excess = find_log_files(self._directory)
        if excess and not self._excess:
            log.warning("too many log files, not uploading the rest", extra={"skipped": excess, "limit": MAX_FILES})
        self._excess = excess
        self._telemetry.log_files_over_limit.set(excess)
        return files

    def _changed(self) -> list[LocalLogFile]:
        limit = self._max_file_bytes
        files = [file for file in self._find() if limit is None or file.size <= limit]
        return [file for file in by_importance(files) if self._shipped.get(file.name) != file.version]

    def _is_due(self, file: LocalLogFile) -> bool:
        shipped = self._shipped.get(file.name)
        if shipped is None:
            return True
        if shipped == file.version:
            return False
        stopped_growing = self._last_seen.get(file.name) == file.version
        return stopped_growing or file.size < shipped[0] or file.size >= max(1, shipped[0]) * _GROWTH_FACTOR

    async def _ship_all(self, files: list[LocalLogFile]) -> int:
        """Upload files, and return the number of failures that should be retried."""
        queue = iter(files)

        async def ship_from_queue() -> int:
            return [await self._ship(file) for file in queue].count(False)

        return sum(await asyncio.gather(*(ship_from_queue() for _ in range(_MAX_CONCURRENT_UPLOADS))))

    async def _ship(self, file: LocalLogFile) -> bool:
        """Upload a file. Return False if the upload should be retried."""
        try:
            descriptor = open_inside(str(self._directory), file.target)
        except FileNotFoundError:
            return True  # Ray has rotated it, or moved it to old/
        except OSError as error:
            self._report_failure(file, error)
            return True
        with stable_path(descriptor, Path(str(self._directory), file.target)) as path:
            try:
                await self._store.put(self._key_of(file.name), path)
            except (StoreError, OSError) as error:
                self._report_failure(file, error)
                return not isinstance(error, StoreUnavailable | StoreDenied | OSError)
        self._shipped[file.name] = file.version
        self._telemetry.uploads.labels("logs").inc()
        self._telemetry.upload_bytes.labels("logs").inc(file.size)
        return True

    def _report_failure(self, file: LocalLogFile, error: Exception) -> None:
        self._telemetry.upload_retries.labels("logs").inc()
        log.warning("log file upload failed, retrying", extra={"file": file.name, "reason": str(error)})


_JOB_DRIVER = re.compile(r"(?:.*/)?job-driver-")
_WORKER = re.compile(r"((?:.*/)?worker-.+)\.(out|err)")


def by_importance(files: Iterable[LocalLogFile]) -> list[LocalLogFile]:
    """Sort files: job drivers, then workers that wrote to stderr, then the rest; each from small to large."""
    files = list(files)
    has_stderr = {match[1] for file in files if file.size and (match := _WORKER.match(file.name)) and match[2] == "err"}

    def rank(file: LocalLogFile) -> int:
        if _JOB_DRIVER.match(file.name):
            return 0
        worker = _WORKER.match(file.name)
        return 1 if worker and worker[1] in has_stderr else 2

    return sorted(files, key=lambda file: (rank(file), file.size))


def find_log_files(directory: Path | None) -> tuple[list[LocalLogFile], int]:
    """Find regular files, and links to files inside the directory. Also return how many exceed the limit."""
    result = walk(str(directory), MAX_FILES) if directory else None
    if result is None:
        return [], 0
    entries = [*((entry.name, entry) for entry in result.entries), *result.links]
    return [LocalLogFile(name, entry.name, entry.size, entry.modified_ns) for name, entry in entries], result.excess
