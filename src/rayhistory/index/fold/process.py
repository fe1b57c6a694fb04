"""The fold of one session, as a process of its own: `python -m rayhistory.index.fold` with a FoldJob on standard input.

It runs apart from the server, so that its memory and its CPU are its own, and speaks on standard output: one JSON line
per step of progress, and the manifest at the end. When an earlier generation covers a part of what there is to read,
its merged rows are taken and only the rest is read.
"""

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import sys
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import DamagedIndex, ObjectNotFound, StoreError
from rayhistory.events.tables import TABLES
from rayhistory.index.build import EARLIER, Built, Given, Report, build
from rayhistory.index.child import end_with_parent
from rayhistory.index.cores import cores
from rayhistory.index.decoding import Decoded, Decoding, decode_all, start_pool
from rayhistory.index.derive import merged_file
from rayhistory.index.manifest import SCHEMA, Closing, Manifest, next_generation, publish, read_latest
from rayhistory.index.overlay import index_store
from rayhistory.index.partials import USUAL_BYTES
from rayhistory.index.parts import Parts
from rayhistory.index.sources import Kind, Source, digest, list_sources, unread
from rayhistory.layout import LARGEST_RECORD, Layout, NodeSeal, SessionRef, read_record
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

_COVERED = "covered.json"
_COMPRESSION = 10
_MEMORY_PER_BYTE = 1.5
_MEMORY_PER_LONG_BYTE = 10
"""Long texts stay as long as they are: DuckDB has them several times, and can put only some of that on disk."""
_WORTH_A_PROCESS = 32 << 20
"""From twice as much to read on, processes that merge a part each are sooner done than one with threads."""
_NICENESS = 10
"""Cores that visitors need are left to them: a fold takes long anyhow, and a page does not."""


class FoldJob(msgspec.Struct):
    settings: dict[str, Any]
    ref: SessionRef
    closing: Closing | None
    scratch: str
    """An empty directory; whoever gives it removes it, so that nothing is left however this process ends."""
    fresh: bool = False
    """Read everything: the generation before cannot be trusted."""


class FoldReport(msgspec.Struct, omit_defaults=True):
    """A line of the fold's output."""

    progress: float = 0.0
    detail: str = ""
    manifest: Manifest | None = None
    outage: str = ""
    """Why the store could not be used."""


class _Facts(msgspec.Struct):
    """What the manifest says of the fold itself."""

    sources: list[Source]
    decoded: Decoded
    """Now and in the generations before."""
    began: float


async def fold(job: FoldJob, report: Report, pool: Executor | None = None) -> Manifest:
    """With a pool, what there is to decode is shared out; without, all is done in this process."""
    began = time.monotonic()
    settings = Settings(**job.settings)
    scratch = Path(job.scratch)
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    indexes = index_store(store, settings)
    try:
        sources = await list_sources(store, layout, job.ref)
        before, covered = await _earlier(indexes, layout, job.ref, scratch) if not job.fresh else (None, set())
        fresh = unread(sources, covered)
        report(0.02, f"{len(fresh)} of {len(sources)} objects to read")
        earlier = Decoded(before.events, before.events * USUAL_BYTES, before.long_bytes) if before else Decoded()
        expected = earlier + estimate(fresh)
        least = min(cores(), expected.raw_bytes // _WORTH_A_PROCESS) if pool else 1
        parts = parts_for(settings, expected, least)
        work = Decoding(settings, scratch, parts)
        decoded = await decode_all(
            work, fresh, pool, lambda done, count: report(0.02 + 0.68 * done, f"{count:,} events read")
        )
        report(0.7, f"{decoded.events:,} events read, merging")
        parts = parts.finer(parts_for(settings, earlier + decoded).number)
        seals = await _read_seals(store, sources)
        gone = {key for key, _ in covered} - {source.key for source in sources}
        built = await asyncio.to_thread(build, settings, scratch, Given(parts, job.closing, seals, gone), pool, report)
        report(0.95, "writing the index")
        facts = _Facts(sources, earlier + decoded, began)
        return await _seal(indexes, layout, job, built, facts)
    finally:
        await store.close()


def estimate(fresh: list[Source]) -> Decoded:
    """What there will be to decode: how far it is compressed is not known, nor how long its texts are."""
    raw = sum(source.size * (1 if source.key.endswith(".jsonl") else _COMPRESSION) for source in fresh)
    return Decoded(raw_bytes=raw)


def parts_for(settings: Settings, decoded: Decoded, least: int = 1) -> Parts:
    """As many as it takes for one part to be no larger than the memory of the process that folds it."""
    memory = decoded.raw_bytes * _MEMORY_PER_BYTE + decoded.long_bytes * _MEMORY_PER_LONG_BYTE
    return Parts(max(least, math.ceil(memory * cores() / settings.fold_memory)))


async def _earlier(
    store: Store, layout: Layout, ref: SessionRef, scratch: Path
) -> tuple[Manifest | None, set[tuple[str, int]]]:
    """The merged rows of the latest generation, put beside the rows to merge, and what they were made from."""
    before = await read_latest(store, layout, ref)
    if before is None:
        return None, set()
    folder = scratch / EARLIER
    folder.mkdir()
    try:
        covered = await store.get(f"{layout.index_prefix(ref)}/{before.build}/{_COVERED}")
        listed = msgspec.json.decode(covered, type=list[tuple[str, int]])
        for table in TABLES:
            name = merged_file(table.name)
            for part, size in enumerate(before.sizes(name)):
                key = layout.index_file_key(ref, before.build, name, part)
                await _fetch(store, key, size, folder / f"{table.name}.{part}.parquet")
    except (ObjectNotFound, msgspec.DecodeError, UnicodeDecodeError, DamagedIndex):
        await asyncio.to_thread(shutil.rmtree, folder)
        return None, set()
    return before, set(listed)


async def _fetch(store: Store, key: str, size: int, path: Path) -> None:
    data = await store.get_range(key, 0, size + 1)
    if len(data) != size:
        raise DamagedIndex(key)
    await asyncio.to_thread(path.write_bytes, data)


async def _read_seals(store: Store, sources: list[Source]) -> list[NodeSeal]:
    seals = []
    for source in sources:
        if source.kind is not Kind.SEAL:
            continue
        try:
            seals.append(read_record(await store.get_range(source.key, 0, LARGEST_RECORD), NodeSeal))
        except ObjectNotFound:
            continue
    return [seal for seal in seals if seal]


async def _seal(store: Store, layout: Layout, job: FoldJob, built: Built, facts: _Facts) -> Manifest:
    generation = await next_generation(store, layout, job.ref)
    folder = f"{generation}-{secrets.token_hex(4)}"
    for name, paths in built.files.items():
        for part, path in enumerate(paths):
            await store.put(layout.index_file_key(job.ref, folder, name, part), path)
    covered = msgspec.json.encode([(source.key, source.version) for source in facts.sources])
    await store.put(f"{layout.index_prefix(job.ref)}/{folder}/{_COVERED}", covered)
    built.counts.size_bytes = sum(source.size for source in facts.sources)
    manifest = Manifest(
        schema=SCHEMA,
        generation=generation,
        build=folder,
        files={name: [path.stat().st_size for path in paths] for name, paths in built.files.items()},
        covered=digest(facts.sources),
        closing=job.closing,
        counts=built.counts,
        first_ns=built.first_ns,
        last_ns=built.last_ns,
        ray_version=built.ray_version,
        seconds=round(time.monotonic() - facts.began, 3),
        events=facts.decoded.events,
        long_bytes=facts.decoded.long_bytes,
    )
    published = await publish(store, layout, job.ref, manifest)
    await _remove_older(store, layout, job.ref, published.generation)
    return published


async def _remove_older(store: Store, layout: Layout, ref: SessionRef, generation: int) -> None:
    """The one before stays, for those who are reading it; what is in the way of nobody may also stay."""
    with contextlib.suppress(StoreError):
        async for info in store.list_all(layout.index_prefix(ref)):
            number = layout.generation_of(ref, info.key)
            if number is not None and number < generation - 1:
                await store.delete(info.key)


def main() -> None:
    end_with_parent(os.getppid())
    os.nice(_NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=FoldJob)

    def say(line: FoldReport) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()

    with start_pool() as pool:
        try:
            manifest = asyncio.run(fold(job, lambda progress, detail: say(FoldReport(progress, detail)), pool))
        except StoreError as error:
            say(FoldReport(outage=str(error)))
            sys.exit(1)
    say(FoldReport(1.0, "done", manifest))


if __name__ == "__main__":
    main()
