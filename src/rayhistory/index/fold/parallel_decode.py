"""Decode the sources of a fold into rows, on all cores if the sources are large. The merge follows."""

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.events.event_batch import EventBatch
from rayhistory.gaps import GapCode
from rayhistory.index.child_process import end_with_parent
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.fetch_ahead import FetchAhead
from rayhistory.index.fold.partial_files import PartialWriter
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.source_ranges import SourceRanges
from rayhistory.index.fold.source_reader import read_source
from rayhistory.index.fold.sources import Source
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_MIN_PARALLEL_BYTES = 2 << 20
_BUFFER_SHARE = 4
"""The row buffer gets a quarter of a decoder's memory, because writing needs further copies of the rows."""
_FETCH_SHARE = 8
"""Bytes that are fetched ahead get an eighth of a decoder's memory."""
_PORTION_BYTES = 8 << 20
_REQUEST_COST_BYTES = 4 << 10
"""The time that a request takes, expressed as the number of compressed bytes that are decoded in this time."""
_MAX_PORTIONS_PER_CORE = 4

Progress = Callable[[float, int], None]


class DecodeWork(msgspec.Struct):
    """Inputs of each decoder process."""

    settings: Settings
    scratch: Path
    partitions: Partitions


class DecodeStats(msgspec.Struct):
    """The amount of data that was decoded."""

    events: int = 0
    raw_bytes: int = 0
    long_bytes: int = 0
    """The number of bytes by which task rows exceed their typical size."""

    def __add__(self, other: "DecodeStats") -> "DecodeStats":
        return DecodeStats(
            self.events + other.events, self.raw_bytes + other.raw_bytes, self.long_bytes + other.long_bytes
        )


def start_pool() -> Executor:
    """Start a process per core. Processes are forked to inherit imports, so call this before any thread starts."""
    pool = ProcessPoolExecutor(
        available_cores(), mp_context=get_context("fork"), initializer=end_with_parent, initargs=(os.getpid(),)
    )
    pool.submit(int)  # the pool starts its processes with the first call
    return pool


async def decode_all(work: DecodeWork, sources: list[Source], pool: Executor | None, progress: Progress) -> DecodeStats:
    """Decode all sources into partial files."""
    if pool is None or sum(source.size for source in sources) < _MIN_PARALLEL_BYTES:
        return await decode(work, sources, "0")
    loop = asyncio.get_running_loop()
    portions = _portions(sources, available_cores())
    running = [
        loop.run_in_executor(pool, decode_in_process, work, portion, str(number))
        for number, portion in enumerate(portions)
    ]
    total = DecodeStats()
    for done, finished in enumerate(asyncio.as_completed(running), 1):
        total += await finished
        progress(done / len(portions), total.events)
    return total


def _portions(sources: list[Source], cores: int) -> list[list[Source]]:
    """Distribute the sources over portions of similar size. Packs of one node stay together.

    Large sessions have several portions per core, so that no core is idle. Small sessions have one per core, because
    each portion waits for its first object and writes separate files.
    """
    units: dict[str, list[Source]] = {}
    for source in sources:
        units.setdefault(source.key.partition("#")[0], []).append(source)
    per_core = max(1, min(_MAX_PORTIONS_PER_CORE, sum(source.size for source in sources) // cores // _PORTION_BYTES))
    portions: list[list[Source]] = [[] for _ in range(cores * per_core)]
    sizes = [0] * len(portions)
    for unit in sorted(units.values(), key=_size, reverse=True):
        smallest = sizes.index(min(sizes))
        portions[smallest] += unit
        sizes[smallest] += _size(unit)
    return [portion for portion in portions if portion]


def _size(sources: list[Source]) -> int:
    """Return the cost of sources: their bytes, and a constant for each request."""
    return sum(source.size + _REQUEST_COST_BYTES for source in sources)


def decode_in_process(work: DecodeWork, sources: list[Source], name: str) -> DecodeStats:
    return asyncio.run(decode(work, sources, name))


async def decode(work: DecodeWork, sources: list[Source], name: str) -> DecodeStats:
    """Decode sources one after the other, in any order, while the next ones are fetched."""
    gc.disable()  # rows have no cycles, and collecting among millions of them costs a third of the time
    memory = work.settings.index_memory // available_cores()
    writer = PartialWriter(work.scratch, name, work.partitions, memory // _BUFFER_SHARE)
    store = open_store(work.settings)
    fetches = FetchAhead(SourceRanges(store).read, sources, memory // _FETCH_SHARE)
    batch = EventBatch(writer.rows)
    decoded = DecodeStats()
    try:
        for source in sources:
            decoded += await _decode_source(source, fetches, writer, batch)
        batch.flush()
        writer.close()
    finally:
        await fetches.close()
        await store.close()
        gc.enable()
    return decoded + DecodeStats(long_bytes=writer.long_bytes)


async def _decode_source(source: Source, fetches: FetchAhead, writer: PartialWriter, batch: EventBatch) -> DecodeStats:
    decoded = DecodeStats()
    try:
        async for count, size in read_source(source, fetches.pieces(source), writer.rows, batch):
            writer.flush_if_large(size)
            decoded += DecodeStats(count, size)
    except ObjectNotFound:
        gap = {"source": source.key, "kind": GapCode.OBJECT_DISAPPEARED.value, "detail": "", "count": 1}
        writer.rows.add("gaps", **gap)
    return decoded
