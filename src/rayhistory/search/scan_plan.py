"""The order in which a session's log files are searched: units of some megabytes, in batches.

Units are ordered by the time when they were stored, which is nearly the order of their lines. Hits of one batch are
sorted by time. So the first page needs only the first batch, and a search can continue at any batch. A batch with more
hits than a page is searched again for each of its pages, so batches grow only as long as hits are rare.
"""

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from rayhistory.logs.source import FlushPoint

UNIT_BYTES = 4 << 20
MAX_BATCH_UNITS = 16


class LogFile(msgspec.Struct, frozen=True):
    """A file to search, as of one point in time."""

    node: str
    path: str
    points: list[FlushPoint]
    identity: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    """Search only lines that start in these ranges. Empty means all lines."""

    @property
    def size(self) -> int:
        return self.points[-1].end if self.points else 0

    def flushed_ms(self, end: int) -> int:
        """Return the time when the bytes before `end` were stored."""
        if not self.points:
            return 0
        position = bisect_left(self.points, end, key=lambda point: point.end)
        return self.points[min(position, len(self.points) - 1)].ms

    def as_of(self, until_ms: int) -> "LogFile":
        return msgspec.structs.replace(self, points=[point for point in self.points if point.ms <= until_ms])


class LogUnit(NamedTuple):
    """A range of a file: the lines that start in [start, end)."""

    file: LogFile
    start: int
    end: int
    flushed_ms: int


class ScanPlan(msgspec.Struct, frozen=True):
    units: list[LogUnit]
    until_ms: int
    digest: int
    unit_bytes: int = UNIT_BYTES

    @property
    def total_bytes(self) -> int:
        return sum(unit.end - unit.start for unit in self.units)

    def batch(self, first: int, size: int) -> list[LogUnit]:
        """Return units from number `first` on: at least one, and at most as many bytes as `size` full units have."""
        end, room = first, size * self.unit_bytes
        while end < len(self.units):
            room -= self.units[end].end - self.units[end].start
            if room < 0 and end > first:
                break
            end += 1
        return self.units[first:end]


def make_plan(
    files: Iterable[LogFile], *, newest_first: bool, until_ms: int | None = None, unit_bytes: int = UNIT_BYTES
) -> ScanPlan:
    """Plan a search. With `until_ms`, use the files of an earlier plan and ignore newer data."""
    everything = list(files)
    if until_ms is None:
        until_ms = max((file.points[-1].ms for file in everything if file.points), default=0)
    units = [unit for file in everything for unit in file_units(file.as_of(until_ms), unit_bytes)]
    sign = -1 if newest_first else 1
    units.sort(key=lambda unit: (sign * unit.flushed_ms, unit.file.node, unit.file.path, sign * unit.start))
    digest = zlib.crc32(msgspec.msgpack.encode([(u.file.node, u.file.path, u.start, u.end) for u in units]))
    return ScanPlan(units, until_ms, digest, unit_bytes)


def file_units(file: LogFile, unit_bytes: int = UNIT_BYTES) -> Iterator[LogUnit]:
    """Yield the units of a file in their order."""
    for begin, stop in file.ranges or ((0, file.size),):
        for start in range(begin, min(stop, file.size), unit_bytes):
            end = min(start + unit_bytes, stop, file.size)
            yield LogUnit(file, start, end, file.flushed_ms(end))


def restrict(file: LogFile, scope: Mapping[tuple[str, str], tuple[tuple[int, int], ...]] | None) -> LogFile | None:
    """Limit a file to the ranges of a scope; None if the scope does not include it."""
    if scope is None:
        return file
    ranges = scope.get((file.node, file.path))
    return None if ranges is None else msgspec.structs.replace(file, ranges=ranges)
