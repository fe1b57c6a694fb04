"""The first half of the fold: sources to rows, on all cores when there is much to read."""

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.index.partials import PartialWriter
from rayhistory.index.read import read_source
from rayhistory.index.sources import Source
from rayhistory.settings import Settings
from rayhistory.storage import open_store

_ONE_PROCESS_IS_ENOUGH = 16 << 20

Progress = Callable[[float, int], None]


async def decode_all(settings: Settings, sources: list[Source], scratch: Path, progress: Progress) -> int:
    """Rows of all sources into partial files in the scratch directory; returns the number of events."""
    if sum(source.size for source in sources) < _ONE_PROCESS_IS_ENOUGH:
        return await decode(settings, sources, scratch, "0")
    workers = max(1, min(os.cpu_count() or 1, len(sources)))
    portions = _portions(sources, workers * 4)
    events = done = 0
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        arguments = [(msgspec.to_builtins(settings), portion, scratch, str(i)) for i, portion in enumerate(portions)]
        for finished in asyncio.as_completed([loop.run_in_executor(pool, decode_in_process, a) for a in arguments]):
            events += await finished
            done += 1
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


def decode_in_process(arguments: tuple[dict[str, Any], list[Source], Path, str]) -> int:
    settings, sources, scratch, name = arguments
    return asyncio.run(decode(Settings(**settings), sources, scratch, name))


async def decode(settings: Settings, sources: list[Source], scratch: Path, name: str) -> int:
    gc.disable()  # rows are trees without cycles: looking for some among millions of them costs a third of the time
    store = open_store(settings)
    writer = PartialWriter(scratch, name)
    events = 0
    for source in sources:
        try:
            async for rows, count in read_source(store, source):
                writer.take(rows)
                events += count
        except ObjectNotFound:
            writer.add("gaps", (source.key, "object that disappeared while it was read", "", 1))
    writer.close()
    await store.close()
    return events
