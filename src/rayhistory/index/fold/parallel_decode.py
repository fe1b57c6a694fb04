"""The first half of the fold: sources to rows, on all cores when there is much to read."""

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.index.child import end_with_parent
from rayhistory.index.cores import cores
from rayhistory.index.partials import PartialWriter
from rayhistory.index.parts import Parts
from rayhistory.index.read import read_source
from rayhistory.index.sources import Source
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_ONE_PROCESS_IS_ENOUGH = 2 << 20
_SHARE_OF_ROWS = 4
"""A decoder's rows take this part of its memory: they are there again while they are written."""

Progress = Callable[[float, int], None]


class Decoding(msgspec.Struct):
    """What every decoder must know."""

    settings: Settings
    scratch: Path
    parts: Parts


class Decoded(msgspec.Struct):
    """How much there was to decode."""

    events: int = 0
    raw_bytes: int = 0
    long_bytes: int = 0
    """By how much the rows of tasks are longer than usual."""

    def __add__(self, other: "Decoded") -> "Decoded":
        return Decoded(self.events + other.events, self.raw_bytes + other.raw_bytes, self.long_bytes + other.long_bytes)


def start_pool() -> Executor:
    """Processes for all cores. They are forked, and so have everything imported: call this before any thread starts."""
    pool = ProcessPoolExecutor(
        cores(), mp_context=get_context("fork"), initializer=end_with_parent, initargs=(os.getpid(),)
    )
    pool.submit(int)  # they start when there is something to do
    return pool


async def decode_all(work: Decoding, sources: list[Source], pool: Executor | None, progress: Progress) -> Decoded:
    """Rows of all sources into partial files."""
    if pool is None or sum(source.size for source in sources) < _ONE_PROCESS_IS_ENOUGH:
        return await decode(work, sources, "0")
    loop = asyncio.get_running_loop()
    portions = _portions(sources, cores() * 4)
    running = [
        loop.run_in_executor(pool, decode_in_process, work, portion, str(number))
        for number, portion in enumerate(portions)
    ]
    total = Decoded()
    for done, finished in enumerate(asyncio.as_completed(running), 1):
        total += await finished
        progress(done / len(portions), total.events)
    return total


def _portions(sources: list[Source], number: int) -> list[list[Source]]:
    """The sources in portions of about the same size, the largest first."""
    portions: list[list[Source]] = [[] for _ in range(number)]
    sizes = [0] * number
    for source in sorted(sources, key=lambda s: -s.size):
        smallest = sizes.index(min(sizes))
        portions[smallest].append(source)
        sizes[smallest] += source.size
    return [portion for portion in portions if portion]


def decode_in_process(work: Decoding, sources: list[Source], name: str) -> Decoded:
    return asyncio.run(decode(work, sources, name))


async def decode(work: Decoding, sources: list[Source], name: str) -> Decoded:
    gc.disable()  # rows are trees without cycles: looking for some among millions of them costs a third of the time
    store = open_store(work.settings)
    writer = PartialWriter(work.scratch, name, work.parts, work.settings.fold_memory // cores() // _SHARE_OF_ROWS)
    decoded = Decoded()
    for source in sources:
        try:
            async for count, size in read_source(store, source, writer.rows):
                writer.take(size)
                decoded += Decoded(count, size)
        except ObjectNotFound:
            writer.rows.add("gaps", (source.key, "object that disappeared while it was read", "", 1))
    writer.close()
    await store.close()
    gc.enable()
    return decoded + Decoded(long_bytes=writer.long_bytes)
