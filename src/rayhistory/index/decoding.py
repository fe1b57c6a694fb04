"""The first half of the fold: sources to rows, on all cores when there is much to read."""

import asyncio
import gc
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

Progress = Callable[[float, int], None]


class Decoding(msgspec.Struct):
    """What every decoder must know."""

    settings: Settings
    scratch: Path
    parts: Parts


def start_pool() -> Executor:
    """Processes for all cores. They are forked, and so have everything imported: call this before any thread starts."""
    pool = ProcessPoolExecutor(cores(), mp_context=get_context("fork"), initializer=end_with_parent)
    pool.submit(int)  # they start when there is something to do
    return pool


async def decode_all(work: Decoding, sources: list[Source], pool: Executor | None, progress: Progress) -> int:
    """Rows of all sources into partial files; returns the number of events."""
    if pool is None or sum(source.size for source in sources) < _ONE_PROCESS_IS_ENOUGH:
        return await decode(work, sources, "0")
    loop = asyncio.get_running_loop()
    portions = _portions(sources, cores() * 4)
    running = [
        loop.run_in_executor(pool, decode_in_process, work, portion, str(number))
        for number, portion in enumerate(portions)
    ]
    events = 0
    for done, finished in enumerate(asyncio.as_completed(running), 1):
        events += await finished
        progress(done / len(portions), events)
    return events


def _portions(sources: list[Source], number: int) -> list[list[Source]]:
    """The sources in portions of about the same size, the largest first."""
    portions: list[list[Source]] = [[] for _ in range(number)]
    sizes = [0] * number
    for source in sorted(sources, key=lambda s: -s.size):
        smallest = sizes.index(min(sizes))
        portions[smallest].append(source)
        sizes[smallest] += source.size
    return [portion for portion in portions if portion]


def decode_in_process(work: Decoding, sources: list[Source], name: str) -> int:
    return asyncio.run(decode(work, sources, name))


async def decode(work: Decoding, sources: list[Source], name: str) -> int:
    gc.disable()  # rows are trees without cycles: looking for some among millions of them costs a third of the time
    store = open_store(work.settings)
    writer = PartialWriter(work.scratch, name, work.parts)
    events = 0
    for source in sources:
        try:
            async for count in read_source(store, source, writer.rows):
                writer.take()
                events += count
        except ObjectNotFound:
            writer.rows.add("gaps", (source.key, "object that disappeared while it was read", "", 1))
    writer.close()
    await store.close()
    gc.enable()
    return events
