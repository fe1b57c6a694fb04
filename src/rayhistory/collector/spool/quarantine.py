"""Bounded storage on local disk for malformed data, so that people can inspect it."""

import asyncio
import logging
import time

from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.telemetry import Telemetry

log = logging.getLogger(__name__)

QUARANTINE_DIR = "set-aside"  # below the spool; named so by the first release, and counted at each start
_MAX_FILES = 1000


class Quarantine:
    """Stores malformed bodies and events up to a budget, and counts all of them."""

    def __init__(self, directory: PrivateDirectory, telemetry: Telemetry, budget: int = 64 * 2**20) -> None:
        self._directory = directory
        self._budget = budget
        self._telemetry = telemetry
        self._files = 0
        self._bytes = 0
        self._directory_scanned = False
        self._logged_reasons: set[str] = set()
        self._write_lock = asyncio.Lock()

    async def add(self, reason: str, data: bytes) -> None:
        """Count and store one malformed body or event; `reason` is a snake_case code. Never raises."""
        self._telemetry.quarantined.labels(reason).inc()
        self._telemetry.quarantined_count += 1
        path = ""
        if self._files < _MAX_FILES and self._bytes < self._budget:
            async with self._write_lock:
                path = await asyncio.to_thread(self._write, reason, data)
        if reason not in self._logged_reasons:
            self._logged_reasons.add(reason)
            log.warning(
                "moved malformed data to quarantine (logged once per reason)",
                extra={"reason": reason, "bytes": len(data), "path": path},
            )

    def _write(self, reason: str, data: bytes) -> str:
        """Write a file and return its path. Return an empty text if there is no room."""
        try:
            self._directory.make()
            if not self._directory_scanned:
                sizes = [self._directory.status(name).st_size for name in self._directory.names()]
                self._files, self._bytes, self._directory_scanned = len(sizes), sum(sizes), True
            data = data[: max(0, self._budget - self._bytes)]
            if not data or self._files >= _MAX_FILES:
                return ""
            name = f"{time.time_ns()}-{reason}"
            with open(self._directory.create(name), "wb") as file:  # noqa: PTH123 - there is only the descriptor
                file.write(data)
        except OSError:
            return ""
        self._files += 1
        self._bytes += len(data)
        return str(self._directory.path / name)
