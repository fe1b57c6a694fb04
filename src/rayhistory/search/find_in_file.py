"""Find the next or previous line of one log file that matches a pattern."""

import time
from functools import partial
from typing import NamedTuple

from rayhistory.errors import IndexDamaged, ProductNotBuilt
from rayhistory.logs.source import LogSource
from rayhistory.search.pattern import SearchPattern
from rayhistory.search.scan_plan import LogFile, LogUnit, file_units
from rayhistory.search.scanner import Scanner, UnitIndex, UnitPlace, read_unit, unit_place
from rayhistory.search.unit_search import UnitBuffer, line_bounds


class FileSearch(NamedTuple):
    """The start and the direction of a search."""

    pattern: SearchPattern
    position: int
    """Found lines start at or after this offset; in a backward search, before it."""
    backwards: bool = False

    def concerns(self, unit: LogUnit) -> bool:
        return unit.start < self.position if self.backwards else unit.end > self.position

    def stop_before(self, unit: LogUnit) -> int:
        """Return the position at which a search continues, if it stopped before a unit."""
        return min(unit.end, self.position) if self.backwards else max(unit.start, self.position)

    def find(self, unit: LogUnit, buffer: UnitBuffer) -> int | None:
        """Return the offset of the first matching line in a unit (backwards: of the last one)."""
        bounds, found = line_bounds(unit, buffer), None
        for begin, _ in self.pattern.lines(buffer.data, *bounds) if bounds else ():
            offset = buffer.offset + begin
            if self.backwards:
                if offset >= self.position:
                    break
                found = offset
            elif offset >= self.position:
                return offset
        return found


class FileSearchResult(NamedTuple):
    offset: int | None = None
    """Offset of the matching line; None if no line matches."""
    stopped_at: int | None = None
    """The position at which to continue, if the time limit was reached."""


async def find_in_file(
    scanner: Scanner,
    logs: LogSource,
    file: LogFile,
    search: FileSearch,
    *,
    visitor: str,
    time_budget_s: float,
    unit_index: UnitIndex | None = None,
) -> FileSearchResult:
    """Read the units of a file, except those that the index excludes, up to the first match."""
    deadline = time.monotonic() + time_budget_s
    units = [unit for unit in file_units(file, scanner.unit_bytes) if search.concerns(unit)]
    excluded = await _excluded(unit_index, units, search.pattern)
    for unit in reversed(units) if search.backwards else units:
        if unit_place(unit) in excluded:
            continue
        if time.monotonic() > deadline:
            return FileSearchResult(stopped_at=search.stop_before(unit))
        async with scanner.turn(visitor) as memory:
            buffer = await read_unit(logs, unit, memory)
            found = await scanner.in_thread(partial(search.find, unit, buffer))
        if found is not None:
            return FileSearchResult(found)
    return FileSearchResult()


async def _excluded(unit_index: UnitIndex | None, units: list[LogUnit], pattern: SearchPattern) -> set[UnitPlace]:
    """Return the units that have no match according to the search index. An unreadable index excludes none."""
    try:
        return await unit_index.excluded(units, pattern) if unit_index else set()
    except IndexDamaged as error:
        if unit_index:
            unit_index.report_damage(str(error))
    except ProductNotBuilt:
        pass
    return set()
