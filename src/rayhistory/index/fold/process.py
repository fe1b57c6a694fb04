"""The fold of a session, in a process of its own: `python -m rayhistory.index.fold.process`.

It runs apart from the server, to isolate its memory and CPU. It reads FoldJobs from standard input, one JSON line each,
and writes FoldReports to standard output in the same way: of each job the progress, the manifest, and that it is ready
for the next. After an error it ends. If a previous generation covers some of the sources, its merged rows are reused
and only the other sources are read.
"""

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.concurrency import concurrently
from rayhistory.errors import IndexDamaged, ObjectNotFound, StoreError
from rayhistory.events.merged_tables import TABLES
from rayhistory.index.child_process import end_with_parent
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.build import PREVIOUS_FOLDER, BuiltTables, FoldInputs, Report, build
from rayhistory.index.fold.parallel_decode import DecodeStats, DecodeWork, decode_all, start_pool
from rayhistory.index.fold.partial_files import TYPICAL_ROW_BYTES
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.served_tables import merged_table_name
from rayhistory.index.fold.sources import Source, SourceKind, list_sources, sources_digest, unread_sources
from rayhistory.index.manifest import (
    SCHEMA_VERSION,
    Manifest,
    next_generation,
    publish_manifest,
    read_latest_manifest,
    used_generations,
)
from rayhistory.index.service.overlay import index_store
from rayhistory.sessions import MAX_RECORD_BYTES, Layout, NodeSeal, SessionRef, read_record
from rayhistory.sessions.records import Closing
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

_COMPRESSION_RATIO = 10
_MEMORY_PER_BYTE = 1.5
_MEMORY_PER_LONG_BYTE = 10
"""DuckDB holds long texts several times, and can spill only some of the copies."""
_MIN_BYTES_PER_PROCESS = 32 << 20
"""From twice this size on, processes that merge a partition each are faster than one process with threads."""
_MAX_CONCURRENT_TRANSFERS = 64
"""Index files that are fetched or uploaded at once."""
_MAX_BYTES_IN_FLIGHT = 64 << 20
_MAX_CONCURRENT_RECORDS = 32
_NICENESS = 10
"""Requests have priority over folds: a page must be fast, a fold takes long anyway."""


class FoldJob(msgspec.Struct):
    """Input of the process, as JSON on its standard input."""

    settings: dict[str, Any]
    ref: SessionRef
    closing: Closing | None
    scratch: str
    """An empty directory. The caller removes it, so that it does not outlive a killed process."""
    fresh: bool = False
    """Read all sources, because the previous generation cannot be trusted."""
    sources: list[Source] | None = None
    """The sources, if the caller has just listed them; otherwise the fold lists them."""


class FoldReport(msgspec.Struct, omit_defaults=True):
    """Output of the process: progress, the manifest, or an error of the store."""

    progress: float = 0.0
    detail: str = ""
    manifest: Manifest | None = None
    outage: str = ""
    """The error of the store that made the fold fail."""
    ready: bool = False
    """The process waits for its next job."""


class _FoldStats(msgspec.Struct):
    """Facts about the fold itself, for the manifest."""

    sources: list[Source]
    decoded: DecodeStats
    """Of this and all previous generations."""
    began: float


def _ignore(manifest: Manifest) -> None:
    """Do nothing when an index is published."""


async def fold(
    job: FoldJob, report: Report, pool: Executor | None = None, on_published: Callable[[Manifest], None] = _ignore
) -> Manifest:
    """Fold a session and publish its index. With a pool, its processes decode and merge.

    Old generations are deleted after `on_published` was called, because nobody needs to wait for that.
    """
    began = time.monotonic()
    settings = Settings(**job.settings)
    scratch = Path(job.scratch)
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    indexes = index_store(store, settings)
    try:
        sources = job.sources if job.sources is not None else await list_sources(store, layout, job.ref)
        previous, covered = None, set[tuple[str, int]]()
        if not job.fresh:
            previous, covered = await _fetch_previous(indexes, layout, job.ref, scratch)
        unread = unread_sources(sources, covered)
        report(0.02, f"{len(unread)} of {len(sources)} objects to read")
        before = _previous_stats(previous)
        expected = before + estimate(unread)
        min_partitions = min(available_cores(), expected.raw_bytes // _MIN_BYTES_PER_PROCESS) if pool else 1
        partitions = partitions_for(settings, expected, min_partitions)
        work = DecodeWork(settings, scratch, partitions)
        decoded = await decode_all(
            work, unread, pool, lambda done, count: report(0.02 + 0.68 * done, f"{count:,} events read")
        )
        report(0.7, f"{decoded.events:,} events read, merging")
        partitions = partitions.finer(partitions_for(settings, before + decoded).count)
        seals = await _read_seals(store, sources)
        removed = {key for key, _ in covered} - {source.key for source in sources}
        inputs = FoldInputs(partitions, job.closing, seals, removed)
        built = await asyncio.to_thread(build, settings, scratch, inputs, pool, report)
        report(0.95, "writing the index")
        stats = _FoldStats(sources, before + decoded, began)
        manifest = await _publish(indexes, layout, job, built, stats)
        on_published(manifest)
        await _delete_old_generations(indexes, layout, job.ref, manifest.generation)
        return manifest
    finally:
        await store.close()


def _previous_stats(previous: Manifest | None) -> DecodeStats:
    if previous is None:
        return DecodeStats()
    return DecodeStats(previous.events, previous.events * TYPICAL_ROW_BYTES, previous.long_bytes)


def estimate(sources: list[Source]) -> DecodeStats:
    """Estimate the amount to decode, assuming a typical compression ratio and no long texts."""
    raw = sum(source.size * (1 if source.key.endswith(".jsonl") else _COMPRESSION_RATIO) for source in sources)
    return DecodeStats(raw_bytes=raw)


def partitions_for(settings: Settings, decoded: DecodeStats, min_count: int = 1) -> Partitions:
    """Return enough partitions for each to fit into the memory of the process that folds it."""
    memory = decoded.raw_bytes * _MEMORY_PER_BYTE + decoded.long_bytes * _MEMORY_PER_LONG_BYTE
    return Partitions(max(min_count, math.ceil(memory * available_cores() / settings.index_memory)))


async def _fetch_previous(
    store: Store, layout: Layout, ref: SessionRef, scratch: Path
) -> tuple[Manifest | None, set[tuple[str, int]]]:
    """Copy the merged tables of the latest generation to the scratch directory; return the sources that they cover.

    A generation that is damaged or incomplete is ignored.
    """
    previous = await read_latest_manifest(store, layout, ref)
    if previous is None:
        return None, set()
    folder = scratch / PREVIOUS_FOLDER
    folder.mkdir()
    try:
        covered = await store.get(layout.covered_key(ref, previous.build))
        listed = msgspec.json.decode(covered, type=list[tuple[str, int]])
        largest = max((size for table in TABLES for size in previous.sizes(merged_table_name(table.name))), default=0)
        limit = max(1, min(_MAX_CONCURRENT_TRANSFERS, _MAX_BYTES_IN_FLIGHT // max(1, largest)))
        await concurrently(_previous_fetches(store, layout, ref, previous, folder), limit)
    except (ObjectNotFound, msgspec.DecodeError, UnicodeDecodeError, IndexDamaged):
        await asyncio.to_thread(shutil.rmtree, folder)
        return None, set()
    return previous, set(listed)


def _previous_fetches(
    store: Store, layout: Layout, ref: SessionRef, previous: Manifest, folder: Path
) -> Iterator[Coroutine[Any, Any, None]]:
    for table in TABLES:
        name = merged_table_name(table.name)
        for number, size in enumerate(previous.sizes(name)):
            key = layout.index_file_key(ref, previous.build, name, number)
            yield _fetch(store, key, size, folder / f"{table.name}.{number}.parquet")


async def _fetch(store: Store, key: str, size: int, path: Path) -> None:
    data = await store.get_range(key, 0, size + 1)
    if len(data) != size:
        raise IndexDamaged(f"{key} has {len(data)} bytes instead of {size}")
    await asyncio.to_thread(path.write_bytes, data)


async def _read_seals(store: Store, sources: list[Source]) -> list[NodeSeal]:
    async def read(source: Source) -> NodeSeal | None:
        try:
            return read_record(await store.get_range(source.key, 0, MAX_RECORD_BYTES), NodeSeal)
        except ObjectNotFound:
            return None

    seals = (read(source) for source in sources if source.kind is SourceKind.SEAL)
    return [seal for seal in await concurrently(seals, _MAX_CONCURRENT_RECORDS) if seal]


async def _publish(store: Store, layout: Layout, job: FoldJob, built: BuiltTables, stats: _FoldStats) -> Manifest:
    generation = await next_generation(store, layout, job.ref)
    folder = f"{generation}-{secrets.token_hex(4)}"
    covered = msgspec.json.encode([(source.key, source.version) for source in stats.sources])
    files: list[tuple[str, bytes | Path]] = [(layout.covered_key(job.ref, folder), covered)]
    for name, paths in built.files.items():
        files += [(layout.index_file_key(job.ref, folder, name, number), path) for number, path in enumerate(paths)]
    await concurrently((store.put(key, data) for key, data in files), _MAX_CONCURRENT_TRANSFERS)
    built.counts.size_bytes = sum(source.size for source in stats.sources)
    manifest = Manifest(
        schema=SCHEMA_VERSION,
        generation=generation,
        build=folder,
        files={name: [path.stat().st_size for path in paths] for name, paths in built.files.items()},
        covered=sources_digest(stats.sources),
        closing=job.closing,
        counts=built.counts,
        first_ns=built.first_ns,
        last_ns=built.last_ns,
        ray_version=built.ray_version,
        seconds=round(time.monotonic() - stats.began, 3),
        events=stats.decoded.events,
        long_bytes=stats.decoded.long_bytes,
    )
    return await publish_manifest(store, layout, job.ref, manifest)


async def _delete_old_generations(store: Store, layout: Layout, ref: SessionRef, generation: int) -> None:
    """Delete generations that are not read any more, by no release. Errors are left to the next fold."""
    with contextlib.suppress(StoreError):
        generations, folders = await used_generations(store, layout, ref)
        async for info in store.list_all(layout.index_prefix(ref)):
            number = layout.generation_of(ref, info.key)
            folder = info.key.removeprefix(layout.index_prefix(ref) + "/").partition("/")[0]
            if number is not None and number < generation - 1 and number not in generations and folder not in folders:
                await store.delete(info.key)


def main() -> None:
    end_with_parent(os.getppid())
    os.nice(_NICENESS)
    with start_pool() as pool:
        for line in sys.stdin.buffer:
            _serve(msgspec.json.decode(line, type=FoldJob), pool)


def _serve(job: FoldJob, pool: Executor) -> None:
    """Fold one session and report on it. An outage ends the process, and with it all requests that are under way."""

    def report_progress(progress: float, detail: str) -> None:
        _write_report(FoldReport(progress, detail))

    def report_manifest(manifest: Manifest) -> None:
        _write_report(FoldReport(1.0, "done", manifest))

    try:
        asyncio.run(fold(job, report_progress, pool, report_manifest))
    except StoreError as error:
        _write_report(FoldReport(outage=str(error)))
        sys.exit(1)
    _write_report(FoldReport(1.0, ready=True))


def _write_report(report: FoldReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
