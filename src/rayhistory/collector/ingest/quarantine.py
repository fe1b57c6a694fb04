"""What could not be understood is kept for people to look at, up to a limit; beyond it, only counted."""

import asyncio
import logging
import time
from pathlib import Path

from rayhistory.collector.metrics import Metrics

log = logging.getLogger(__name__)

_MOST_FILES = 1000


class SetAside:
    def __init__(self, directory: Path, metrics: Metrics, budget: int = 64 * 2**20) -> None:
        self._directory = directory
        self._budget = budget
        self._metrics = metrics
        self._files = 0
        self._bytes = 0
        self._counted_directory = False
        self._said: set[str] = set()
        self._turn = asyncio.Lock()

    async def keep(self, reason: str, data: bytes) -> None:
        """One body or one event, with a reason of one or two words. Never fails."""
        self._metrics.set_aside.labels(reason).inc()
        self._metrics.bad += 1
        path = None
        if self._files < _MOST_FILES and self._bytes < self._budget:
            async with self._turn:
                path = await asyncio.to_thread(self._write, reason, data)
        if reason not in self._said:
            self._said.add(reason)
            log.warning(
                "something that cannot be understood was set aside; more of the same is only counted",
                extra={"reason": reason, "bytes": len(data), "path": str(path or "")},
            )

    def _write(self, reason: str, data: bytes) -> Path | None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not self._counted_directory:
                sizes = [path.stat().st_size for path in self._directory.iterdir()]
                self._files, self._bytes, self._counted_directory = len(sizes), sum(sizes), True
            data = data[: max(0, self._budget - self._bytes)]
            if not data or self._files >= _MOST_FILES:
                return None
            path = self._directory / f"{time.time_ns()}-{reason.replace(' ', '-')}"
            path.write_bytes(data)
        except OSError:
            return None
        self._files += 1
        self._bytes += len(data)
        return path
