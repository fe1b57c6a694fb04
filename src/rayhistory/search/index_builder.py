"""Build shards of a search index for log lines that are new since the last build."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np

from rayhistory.index.cores import available_cores
from rayhistory.logs.source import LogSource
from rayhistory.search.line_breaks import count_line_breaks
from rayhistory.search.postings import MAX_UNITS, IndexedUnit, encode_shard
from rayhistory.search.scan_plan import UNIT_BYTES, LogFile, LogUnit, make_plan
from rayhistory.search.scanner import read_unit
from rayhistory.search.token_hashes import Hashes
from rayhistory.search.tokens import Keys, TextTokens, merged, read_tokens
from rayhistory.search.unit_search import UnitBuffer, line_bounds

MAX_TOKENS_BYTES = 64 << 20
"""Maximum size of the tokens of a shard. A shard ends before its tokens exceed this."""


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
        for batch in plan.batches
        for unit in batch
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
    """Write shards for these units. Return the files by name. Units are read and tokenised concurrently."""
    depth = 1 + (workers or available_cores())
    files: dict[str, Path] = {}
    shard = _ShardBuilder(unit_bytes)
    reads: deque[asyncio.Task[_UnitTokens]] = deque()
    buffers = [bytearray() for _ in range(depth)]
    try:
        for number, unit in enumerate(units):
            for ahead in units[number + len(reads) : number + depth]:
                reads.append(asyncio.ensure_future(_read_tokens(logs, ahead, buffers, shard.known)))
            shard.add(unit, await reads.popleft())
            if shard.is_full or number + 1 == len(units):
                name = f"{prefix}-{len(files):04d}.shard"
                files[name] = directory / name
                await asyncio.to_thread(shard.write, files[name])
                await asyncio.gather(*reads)  # what they know belongs to this shard
                reads.clear()
                shard = _ShardBuilder(unit_bytes)
            report((number + 1) / len(units))
    finally:
        for read in reads:
            read.cancel()
    return files


class _UnitTokens(msgspec.Struct):
    text: TextTokens
    line_breaks: int


async def _read_tokens(logs: LogSource, unit: LogUnit, buffers: list[bytearray], known: Hashes) -> _UnitTokens:
    memory = buffers.pop() if buffers else bytearray()
    buffer = await read_unit(logs, unit, memory)
    read = await asyncio.to_thread(_tokenise, unit, buffer, known)
    buffers.append(memory)
    return read


def _tokenise(unit: LogUnit, buffer: UnitBuffer, known: Hashes) -> _UnitTokens:
    """Return the tokens of the lines that start in a unit."""
    bounds = line_bounds(unit, buffer)
    data, offset = buffer.data, buffer.offset
    text = read_tokens(data, *(bounds or (0, 0)), known)
    return _UnitTokens(text, count_line_breaks(data, unit.start - offset, unit.end - offset))


class _ShardBuilder:
    def __init__(self, unit_bytes: int) -> None:
        self.known: Hashes = np.empty(0, np.uint64)
        """Hashes of the shard's tokens so far."""
        self._unit_bytes = unit_bytes
        self._units: list[IndexedUnit] = []
        self._keys: list[Keys] = []
        self._tokens: set[bytes] = set()
        self._tokens_bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._units) == MAX_UNITS or self._tokens_bytes > MAX_TOKENS_BYTES

    def add(self, unit: LogUnit, read: _UnitTokens) -> None:
        file, text = unit.file, read.text
        self._units.append(IndexedUnit(file.node, file.path, file.identity, unit.start, unit.end, read.line_breaks))
        self._keys.append(text.keys)
        self.known = merged(self.known, text.new_hashes)
        self._tokens.update(text.tokens)
        self._tokens_bytes += sum(map(len, text.tokens))

    def write(self, path: Path) -> None:
        path.write_bytes(encode_shard(self._units, self._unit_bytes, self._keys, self._tokens))
