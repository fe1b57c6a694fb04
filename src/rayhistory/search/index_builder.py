"""Build segments of a search index from log files: what is new since the last build, and nothing else."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from rayhistory.logs.source import LogSource
from rayhistory.search.postings import MAX_UNITS, IndexedUnit, encode_segment
from rayhistory.search.scan_plan import UNIT_BYTES, LogFile, LogUnit, make_plan
from rayhistory.search.scanner import read_unit
from rayhistory.search.tokens import Keys, TokenReader
from rayhistory.search.unit_search import UnitBuffer, line_bounds

MAX_TOKENS_BYTES = 64 << 20
"""Tokens of a segment, at most. A segment ends before that."""


async def new_units(logs: LogSource, indexed: Iterable[IndexedUnit], unit_bytes: int = UNIT_BYTES) -> list[LogUnit]:
    """Return the units of all files that are not indexed as they are now."""
    known = {(unit.node, unit.path, unit.identity, unit.start, unit.end) for unit in indexed}
    files = [
        LogFile(node, path, history.points, history.identity)
        for node in await logs.nodes()
        for path, history in (await logs.histories(node)).items()
    ]
    plan = make_plan(files, newest_first=False, unit_bytes=unit_bytes)
    return [
        unit
        for batch in plan.batches
        for unit in batch
        if (unit.file.node, unit.file.path, unit.file.identity, unit.start, unit.end) not in known
    ]


async def build_segments(
    logs: LogSource,
    units: list[LogUnit],
    directory: Path,
    *,
    prefix: str,
    report: Callable[[float], None] = lambda progress: None,
    unit_bytes: int = UNIT_BYTES,
) -> dict[str, Path]:
    """Write segments for these units; return the files by name."""
    files: dict[str, Path] = {}
    segment = _SegmentBuilder(unit_bytes)
    following = asyncio.ensure_future(read_unit(logs, units[0])) if units else None
    for number, unit in enumerate(units):
        assert following is not None  # noqa: S101
        buffer = await following
        following = asyncio.ensure_future(read_unit(logs, units[number + 1])) if number + 1 < len(units) else None
        await asyncio.to_thread(segment.add, unit, buffer)
        if segment.is_full or following is None:
            name = f"{prefix}-{len(files):04d}.segment"
            files[name] = directory / name
            await asyncio.to_thread(segment.write, files[name])
            segment = _SegmentBuilder(unit_bytes)
        report((number + 1) / len(units))
    return files


class _SegmentBuilder:
    def __init__(self, unit_bytes: int) -> None:
        self._unit_bytes = unit_bytes
        self._reader = TokenReader()
        self._units: list[IndexedUnit] = []
        self._keys: list[Keys] = []
        self._tokens: set[bytes] = set()
        self._tokens_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._units) == MAX_UNITS or self._tokens_bytes > MAX_TOKENS_BYTES

    def add(self, unit: LogUnit, buffer: UnitBuffer) -> None:
        """Index the lines that begin in a unit."""
        bounds = line_bounds(unit, buffer)
        data, offset = buffer.data, buffer.offset
        read = self._reader.read(data[slice(*bounds)] if bounds else b"")
        breaks = data.count(b"\n", unit.start - offset, unit.end - offset)
        file = unit.file
        self._units.append(IndexedUnit(file.node, file.path, file.identity, unit.start, unit.end, breaks))
        self._keys.append(read.keys)
        self._tokens |= read.new_tokens
        self._tokens_bytes += sum(map(len, read.new_tokens))

    def write(self, path: Path) -> None:
        path.write_bytes(encode_segment(self._units, self._unit_bytes, self._keys, self._tokens))
