"""The first half of the fold: sources to rows, on all cores if there is much to read."""

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.gaps import GapCode
from rayhistory.index.child_process import end_with_parent
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.partial_files import PartialWriter
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.source_reader import read_source
from rayhistory.index.fold.sources import Source
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_MIN_PARALLEL_BYTES = 2 << 20
_BUFFER_SHARE = 4
"""A decoder's row buffer gets a fourth of its memory, because rows are copied while they are written."""

Progress = Callable[[float, int], None]


class DecodeWork(msgspec.Struct):
    """Inputs of each decoder process."""

    settings: Settings
    scratch: Path
    partitions: Partitions


class DecodeStats(msgspec.Struct):
    """The amount that was decoded."""

    events: int = 0
    raw_bytes: int = 0
    long_bytes: int = 0
    """The number of bytes by which the rows of tasks exceed their typical size."""

    def __add__(self, other: "DecodeStats") -> "DecodeStats":
        return DecodeStats(
            self.events + other.events, self.raw_bytes + other.raw_bytes, self.long_bytes + other.long_bytes
        )


def start_pool() -> Executor:
    """Start a process per core. They are forked, to inherit all imports: call this before any thread starts."""
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
    portions = _portions(sources, available_cores() * 4)
    running = [
        loop.run_in_executor(pool, decode_in_process, work, portion, str(number))
        for number, portion in enumerate(portions)
    ]
    total = DecodeStats()
    for done, finished in enumerate(asyncio.as_completed(running), 1):
        total += await finished
        progress(done / len(portions), total.events)
    return total


def _portions(sources: list[Source], number: int) -> list[list[Source]]:
    """Distribute the sources over portions of about the same size."""
    portions: list[list[Source]] = [[] for _ in range(number)]
    sizes = [0] * number
    for source in sorted(sources, key=lambda s: -s.size):
        smallest = sizes.index(min(sizes))
        portions[smallest].append(source)
        sizes[smallest] += source.size
    return [portion for portion in portions if portion]


def decode_in_process(work: DecodeWork, sources: list[Source], name: str) -> DecodeStats:
    return asyncio.run(decode(work, sources, name))


async def decode(work: DecodeWork, sources: list[Source], name: str) -> DecodeStats:
    gc.disable()  # rows have no cycles, and collecting among millions of them costs a third of the time
    store = open_store(work.settings)
    writer = PartialWriter(
        work.scratch, name, work.partitions, work.settings.index_memory // available_cores() // _BUFFER_SHARE
    )
    decoded = DecodeStats()
    for source in sources:
        try:
            async for count, size in read_source(store, source, writer.rows):
                writer.flush_if_large(size)
                decoded += DecodeStats(count, size)
        except ObjectNotFound:
            gap = {"source": source.key, "kind": GapCode.OBJECT_DISAPPEARED.value, "detail": "", "count": 1}
            writer.rows.add("gaps", **gap)
    writer.close()
    await store.close()
    gc.enable()
    return decoded + DecodeStats(long_bytes=writer.long_bytes)
