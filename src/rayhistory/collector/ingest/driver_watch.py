"""Detect drivers that do not export events. Their tasks have no definition and no error.

The GCS reports every driver to the head's collector. A driver that exports events reports itself and its tasks within
seconds to the collector of its node. Events are not decoded for this; their bytes are searched.
"""

import base64
import re
import time
from collections.abc import Iterable

import msgspec

from rayhistory import ids
from rayhistory.collector.spool.block import Block
from rayhistory.sessions.kuberay_keys import JOB_EVENTS

SILENT_AFTER_S = 10.0
_MAX_DRIVERS = 4096
_DRIVER_TASK = b"\xff" * 20
"""Prefix of the id of a driver's own task. The job id follows."""
_JOB_DEFINITION = b"DRIVER_JOB_DEFINITION_EVENT"
_DRIVER_NODE = re.compile(rb'"driver_?[nN]ode_?[iI]d": ?"([^"]{1,128})"')


class _Driver(msgspec.Struct):
    own_task: re.Pattern[bytes]
    reported_at: float | None = None
    node: str | None = None


class DriverWatch:
    def __init__(self) -> None:
        self._drivers: dict[tuple[str, str], _Driver | None] = {}
        """Drivers by session and job, oldest first. The value is None if the driver exports events."""

    def observe(self, session: str, blocks: Iterable[Block]) -> None:
        for block in blocks:
            folder, _, job = block.category.partition("/")
            if folder == JOB_EVENTS and self._drivers.get((session, job), _UNKNOWN) is not None:
                self._observe_job((session, job), block.data)

    def _observe_job(self, key: tuple[str, str], data: bytes) -> None:
        driver = self._drivers.get(key)
        if driver is None:
            pattern = _own_task_pattern(key[1])
            if pattern is None:
                return
            driver = self._drivers[key] = _Driver(pattern)
            if len(self._drivers) > _MAX_DRIVERS:
                del self._drivers[next(iter(self._drivers))]
        if driver.own_task.search(data):
            self._drivers[key] = None
        elif driver.reported_at is None and _JOB_DEFINITION in data:
            driver.reported_at = time.monotonic()
            if found := _DRIVER_NODE.search(data):
                driver.node = ids.to_hex(found[1].decode(errors="replace"), ids.NODE)

    def silent(self, session: str, *, min_seconds: float = SILENT_AFTER_S) -> dict[str, str | None]:
        """Return the jobs whose drivers have sent no events to this collector, each with the node of its driver.

        Only drivers count that the GCS reported at least `min_seconds` ago. A driver on another node sends its events
        to the collector there.
        """
        before = time.monotonic() - min_seconds
        return {
            job: driver.node
            for (of, job), driver in self._drivers.items()
            if of == session and driver and driver.reported_at is not None and driver.reported_at <= before
        }


def _own_task_pattern(job: str) -> re.Pattern[bytes] | None:
    """Return a pattern for events about the driver's own task, or about a task that it submitted."""
    try:
        task = _DRIVER_TASK + bytes.fromhex(job)
    except ValueError:
        return None
    spellings = b"|".join(map(re.escape, (base64.b64encode(task), task.hex().encode())))
    return re.compile(rb'"(?:task_?[iI]d|parent_?[tT]ask_?[iI]d)": ?"(?:' + spellings + rb')"')


_UNKNOWN = _Driver(re.compile(b""))
