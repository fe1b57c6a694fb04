"""Store the Grafana dashboards that Ray's head writes into the session directory.

They fit the session's version of Ray, because they query the metrics of this version.
"""

import asyncio
import heapq
import logging
import re
from pathlib import Path

from rayhistory.collector.session.ray_files import READ_BYTES, read_start, scan_folder
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreError
from rayhistory.metrics.dashboard_bundle import MAX_DASHBOARDS, encode_bundle
from rayhistory.storage import Store

log = logging.getLogger(__name__)

_FOLDER = "metrics/grafana/dashboards"
_NAME = re.compile(r"[\w.-]{1,100}\.json\Z", re.ASCII)
_FIRST_INTERVAL_S, _INTERVAL_S = 2.0, 60.0
_FIRST_POLLS = 30
_MAX_TOTAL_BYTES = 8 * READ_BYTES


class DashboardFiles:
    """Uploads the Grafana dashboards when they appear, and again when they change."""

    def __init__(self, directory: Path, store: Store, key: str, telemetry: Telemetry) -> None:
        self._directory = directory
        self._store = store
        self._key = key
        self._telemetry = telemetry
        self._uploaded: list[tuple[str, int, int]] = []

    async def run(self) -> None:
        """Poll often until the head has written the Grafana dashboards, which takes some seconds."""
        polls = 0
        while True:
            await self.upload_if_changed()
            polls += 1
            often = not self._uploaded and polls < _FIRST_POLLS
            await asyncio.sleep(_FIRST_INTERVAL_S if often else _INTERVAL_S)

    async def upload_if_changed(self) -> None:
        found = await asyncio.to_thread(list_dashboards, self._directory)
        if not found or found == self._uploaded:
            return
        files = await asyncio.to_thread(read_dashboards, self._directory, [name for name, _, _ in found])
        data = await asyncio.to_thread(encode_bundle, files)
        try:
            await self._store.put(self._key, data)
        except (StoreError, OSError) as error:
            self._telemetry.upload_retries.labels("dashboards").inc()
            log.warning("Grafana dashboard upload failed, retrying", extra={"reason": str(error)})
            return
        self._telemetry.uploads.labels("dashboards").inc()
        self._uploaded = found


def list_dashboards(directory: Path) -> list[tuple[str, int, int]]:
    """List the files of Grafana dashboards with their times and sizes. Files that are too large are skipped."""
    entries = (
        (name, status.st_mtime_ns, status.st_size)
        for name, status in scan_folder(directory, _FOLDER, _NAME)
        if 0 < status.st_size < READ_BYTES
    )
    return heapq.nsmallest(MAX_DASHBOARDS, entries)


def read_dashboards(directory: Path, names: list[str]) -> dict[str, bytes]:
    """Read the files of Grafana dashboards without following links, up to a total size."""
    files: dict[str, bytes] = {}
    total = 0
    for name in names:
        body = read_start(directory, f"{_FOLDER}/{name}")
        total += len(body)
        if body and total <= _MAX_TOTAL_BYTES:
            files[name] = body
    return files
