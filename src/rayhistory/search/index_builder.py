"""Build shards of a search index for log lines that are new since the last build."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from rayhistory.index.cores import available_cores
from rayhistory.logs.source import LogSource
from rayhistory.search.gram_query import has_odd_case
from rayhistory.search.grams import TextRows, read_rows
from rayhistory.search.line_breaks import count_line_breaks
from rayhistory.search.scan_plan import UNIT_BYTES, LogFile, LogUnit, make_plan
from rayhistory.search.scanner import read_unit
from rayhistory.search.shard_format import MAX_GROUPS, MAX_UNITS, IndexedUnit, ShardBitmap
from rayhistory.search.unit_search import UnitBuffer, line_bounds


async def new_units(logs: LogSource, indexed: Iterable[IndexedUnit], unit_bytes: int = UNIT_BYTES) -> list[LogUnit]:
    """Return the units of all files that are new or have changed since they were indexed."""
    known = {(unit.node, unit.path, unit.identity, unit.start, unit.end) for unit in indexed}
    files = [
        LogFile(node, path, history.points, history.identity)
        for node in await logs.nodes()
        for path, history in (await logs.histories(node)).items()
    ]
    plan = make_plan(files, newest_first=False, unit_bytes=unit_bytes)
    return [
        unit
        for unit in plan.units
        if (unit.file.node, unit.file.path, unit.file.identity, unit.start, unit.end) not in known
    ]


async def build_shards(
    logs: LogSource,
    units: list[LogUnit],
    directory: Path,
    *,
    prefix: str,
    report: Callable[[float], None] = lambda progress: None,
    unit_bytes: int = UNIT_BYTES,
    workers: int | None = None,
) -> dict[str, Path]:
    """Write shards for these units. Return the files by name.

    Several units are read at the same time, and while a shard is written.
    """
    depth = 1 + (workers or available_cores())
    files: dict[str, Path] = {}
    shard = _ShardBuilder(unit_bytes)
    reads: deque[asyncio.Task[_UnitRows]] = deque()
    writing: asyncio.Future[None] | None = None
    buffers = [bytearray() for _ in range(depth)]
    try:
        for number, unit in enumerate(units):
            for ahead in units[number + len(reads) : number + depth]:
                reads.append(asyncio.ensure_future(_read_unit_rows(logs, ahead, buffers)))
            shard.add(unit, await reads.popleft())
            if shard.is_full or number + 1 == len(units):
                name = f"{prefix}-{len(files):04d}.shard"
                files[name] = directory / name
                if writing:
                    await writing  # at most two shards are in memory
                writing = asyncio.ensure_future(asyncio.to_thread(shard.write, files[name]))
                shard = _ShardBuilder(unit_bytes)
            report((number + 1) / len(units))
        if writing:
            await writing
    finally:
        for read in reads:
            read.cancel()
    return files


class _UnitRows(msgspec.Struct):
    rows: TextRows
    line_breaks: int
    has_odd_case: bool


async def _read_unit_rows(logs: LogSource, unit: LogUnit, buffers: list[bytearray]) -> _UnitRows:
    memory = buffers.pop() if buffers else bytearray()
    buffer = await read_unit(logs, unit, memory)
    read = await asyncio.to_thread(_unit_rows, unit, buffer)
    buffers.append(memory)
    return read


def _unit_rows(unit: LogUnit, buffer: UnitBuffer) -> _UnitRows:
    """Return the rows of the lines that start in a unit."""
    data, offset = buffer.data, buffer.offset
    start, end = line_bounds(unit, buffer) or (0, 0)
    breaks = count_line_breaks(data, unit.start - offset, unit.end - offset)
    return _UnitRows(read_rows(data, start, end), breaks, has_odd_case(data))


class _ShardBuilder:
    def __init__(self, unit_bytes: int) -> None:
        self._units: list[IndexedUnit] = []
        self._bitmap = ShardBitmap(unit_bytes)

    @property
    def is_full(self) -> bool:
        return self._bitmap.groups == MAX_GROUPS or len(self._units) == MAX_UNITS

    def add(self, unit: LogUnit, read: _UnitRows) -> None:
        file, (start, end) = unit.file, (unit.start, unit.end)
        group = self._bitmap.add(read.rows, end - start)
        self._units.append(
            IndexedUnit(file.node, file.path, file.identity, start, end, read.line_breaks, group, read.has_odd_case)
        )

    def write(self, path: Path) -> None:
        path.write_bytes(self._bitmap.encode(self._units))
