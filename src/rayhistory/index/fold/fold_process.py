"""The fold of a session, in a separate process: `python -m rayhistory.index.fold.fold_process`.

A separate process isolates memory and CPU from the server. It reads FoldJobs from standard input and writes FoldReports
to standard output, each as a JSON line: the progress of a job, its manifest, and that it is ready for the next job. It
exits after an error.

If a previous generation covers some of the sources, only the others are read, and their rows become a new part. A part
that cannot be read is rebuilt from its sources.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.concurrency import concurrently
from rayhistory.errors import IndexDamaged, ObjectNotFound, StoreError
from rayhistory.events.table_columns import TABLES, TASK_TABLES
from rayhistory.index.batch_ranges import join_ranges
from rayhistory.index.child_process import start_work, write_report
from rayhistory.index.cores import available_cores
from rayhistory.index.fold.build import PREVIOUS_FOLDER, BuiltTables, FoldInputs, Report, build
from rayhistory.index.fold.earlier_rows import EarlierRows
from rayhistory.index.fold.parallel_decode import DecodeStats, DecodeWork, decode_all, start_pool
from rayhistory.index.fold.part_compaction import choose_parts, compact, parts_after
from rayhistory.index.fold.part_tables import key_hash
from rayhistory.index.fold.partial_files import TYPICAL_ROW_BYTES
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.previous_index import CoveredSource, PartDamaged, PreviousIndex, covered_sources
from rayhistory.index.fold.publication import Publication, delete_old_generations
from rayhistory.index.fold.served_tables import merged_table_name
from rayhistory.index.fold.sources import Source, list_sources, read_seals, sources_digest, unread_sources
from rayhistory.index.manifest import (
    SCHEMA_VERSION,
    LatestIndex,
    Manifest,
    Part,
    read_latest_and_next,
    read_latest_manifest,
)
from rayhistory.index.overlay import index_store
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.sessions.stored_size import stored_bytes
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

log = logging.getLogger(__name__)

_COMPRESSION_RATIO = 10
_MEMORY_PER_BYTE = 1.5
_MEMORY_PER_LONG_BYTE = 10
"""Memory per byte of long texts. DuckDB holds long texts several times, and can spill only some of the copies."""
_MIN_BYTES_PER_PROCESS = 32 << 20
"""Minimum bytes per process. Above twice this size, one process per partition is faster than one process with threads.
"""
_NICENESS = 10
"""Folds run at lower CPU priority than requests."""


class FoldJob(msgspec.Struct):
    """Input of the process, as JSON on its standard input."""

    settings: dict[str, Any]
    ref: SessionRef
    closing: Closing | None
    scratch: str
    """An empty directory. The caller removes it, so that it does not outlive a killed process."""
    fresh: bool = False
    """True to read all sources, even if a previous generation covers them."""
    repair: bool = False
    """True to rebuild the damaged parts of the previous generation, or everything if no part is damaged."""
    sources: list[Source] | None = None
    """The sources, if the caller has just listed them; otherwise the fold lists them."""
    latest: LatestIndex | None = None
    """The latest manifest and the next generation's number, if the caller has just read them."""


class FoldReport(msgspec.Struct, omit_defaults=True):
    """Output of the process: progress, the manifest, or an error of the store."""

    progress: float = 0.0
    detail: str = ""
    manifest: Manifest | None = None
    outage: str = ""
    """The error of the store that made the fold fail."""
    ready: bool = False
    """True if the process waits for its next job."""
    warning: str = ""
    """A message that the server logs, with the name of the session."""
    reason: str = ""


def _ignore(manifest: Manifest) -> None:
    """Do nothing when an index is published."""


async def fold(
    job: FoldJob, report: Report, pool: Executor | None = None, on_published: Callable[[Manifest], None] = _ignore
) -> Manifest:
    """Fold a session and publish its index. With a pool, its processes decode and merge.

    Compaction and deletion of old generations happen after `on_published`, because nobody needs to wait for them.
    """
    settings = Settings(**job.settings)
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    try:
        sources = job.sources if job.sources is not None else await list_sources(store, layout, job.ref)
        return await _Fold(job, settings, store, sources, pool=pool, report=report).run(on_published)
    finally:
        await store.close()


class _Fold:
    """One fold: read new sources, build tables, publish them, and compact parts."""

    def __init__(
        self,
        job: FoldJob,
        settings: Settings,
        store: Store,
        sources: list[Source],
        *,
        pool: Executor | None,
        report: Report,
    ) -> None:
        self._began = time.monotonic()
        self._job = job
        self._settings = settings
        self._store = store
        self._indexes = index_store(store, settings)
        self._layout = Layout(settings.storage_root_dir)
        self._sources = sources
        self._pool = pool
        self._report = report
        self._attempts = 0

    async def run(self, on_published: Callable[[Manifest], None]) -> Manifest:
        """Run the fold. If a part turns out to be damaged, repeat it without the part, and read its sources again."""
        lost: set[str] | None = set()
        if self._job.fresh:
            lost = None
        elif self._job.repair:
            lost = await self._find_damage()
        while True:
            try:
                published = await self._fold(lost)
            except PartDamaged as error:
                if lost is None or error.part in lost:
                    raise
                log.warning("files of the index are damaged, rebuilding them", extra={"reason": str(error)})
                lost.add(error.part)
            else:
                on_published(published)
                await delete_old_generations(self._indexes, self._layout, self._job.ref, published.generation)
                return await self._compact(published)

    def _scratch(self) -> Path:
        """Return a new empty directory."""
        self._attempts += 1
        scratch = Path(self._job.scratch) / str(self._attempts)
        (scratch / PREVIOUS_FOLDER).mkdir(parents=True)
        return scratch

    def _open(self, manifest: Manifest, lost: set[str]) -> PreviousIndex:
        return PreviousIndex(self._indexes, self._layout, self._job.ref, manifest, self._scratch(), lost=lost)

    async def _find_damage(self) -> set[str] | None:
        """Return the damaged parts; None to rebuild everything."""
        manifest = await read_latest_manifest(self._indexes, self._layout, self._job.ref)
        if manifest is None:
            return None
        previous = self._open(manifest, set())
        try:
            await previous.check_small_tables()
        except IndexDamaged:
            return None
        return await previous.damaged_parts() or None

    async def _fold(self, lost: set[str] | None) -> Manifest:
        """Fold new sources, and the sources of lost parts. If there is no previous generation, fold all sources."""
        latest, generation = self._job.latest or await read_latest_and_next(self._indexes, self._layout, self._job.ref)
        scratch = self._scratch()
        previous, listed = None, list[CoveredSource]()
        if latest and lost is not None:
            previous, listed = await self._fetch_previous(latest, scratch / PREVIOUS_FOLDER, lost)
        covered = [source for source in listed if not (previous and previous.is_lost(source))]
        unread = unread_sources(self._sources, [(key, version) for key, version, _, _ in covered])
        self._report(0.02, f"{len(unread)} of {len(self._sources)} objects to read")
        removed = {source[0] for source in listed} - {source.key for source in self._sources}
        (built, decoded), size_bytes = await asyncio.gather(
            self._build(unread, removed, previous, scratch), self._size_bytes()
        )
        built.counts.size_bytes = size_bytes
        self._report(0.95, "writing the index")
        total = _previous_stats(previous) + decoded
        publication = Publication(self._indexes, self._layout, self._job.ref, generation)
        sources = covered_sources(self._sources, unread, covered, generation)
        return await publication.publish(await self._manifest(publication, built, previous, total, sources))

    async def _build(
        self, unread: list[Source], removed: set[str], previous: PreviousIndex | None, scratch: Path
    ) -> tuple[BuiltTables, DecodeStats]:
        (decoded, partitions), seals = await asyncio.gather(
            self._decode(unread, scratch), read_seals(self._store, self._sources)
        )
        self._report(0.7, f"{decoded.events:,} events read, merging")

        def partition_again(earlier: EarlierRows) -> Partitions:
            typical = earlier.rows * TYPICAL_ROW_BYTES
            older = DecodeStats(0, typical, max(0, _COMPRESSION_RATIO * earlier.size - typical))
            return partitions.finer(partitions_for(self._settings, decoded + older).count)

        new = partitions.finer(partitions_for(self._settings, decoded).count)
        inputs = FoldInputs(new, self._job.closing, seals, removed, previous, partition_again)
        return await asyncio.to_thread(build, self._settings, scratch, inputs, self._pool, self._report), decoded

    async def _fetch_previous(
        self, manifest: Manifest, folder: Path, lost: set[str]
    ) -> tuple[PreviousIndex | None, list[CoveredSource]]:
        """Fetch the files of the previous generation that every fold reads. Ignore it if a small table is damaged."""
        if manifest.key_hash != await asyncio.to_thread(key_hash):
            return None, []
        previous = self._open(manifest, lost)
        try:
            tables = [table.name for table in TABLES if table.name not in TASK_TABLES]
            fetches = [previous.fetch_table(merged_table_name(name), folder, name) for name in tables]
            calls: list[Coroutine[Any, Any, Any]] = [previous.covered(), previous.fetch_lookups(), *fetches]
            listed, *_ = await concurrently(calls, len(calls))
        except PartDamaged:
            raise
        except (ObjectNotFound, msgspec.DecodeError, UnicodeDecodeError, IndexDamaged):
            await asyncio.to_thread(_empty, folder)
            return None, []
        return previous, listed

    async def _decode(self, unread: list[Source], scratch: Path) -> tuple[DecodeStats, Partitions]:
        expected = estimate(unread)
        min_partitions = min(available_cores(), expected.raw_bytes // _MIN_BYTES_PER_PROCESS) if self._pool else 1
        partitions = partitions_for(self._settings, expected, min_partitions)
        work = DecodeWork(self._settings, scratch, partitions)

        def progress(done: float, count: int) -> None:
            self._report(0.02 + 0.68 * done, f"{count:,} events read")

        return await decode_all(work, unread, self._pool, progress), partitions

    async def _size_bytes(self) -> int:
        """Return the size of the session. While it runs, only its events count."""
        if not self._job.closing:
            return sum(source.size for source in self._sources)
        return await stored_bytes(self._store, self._layout, self._job.ref)

    async def _manifest(
        self,
        publication: Publication,
        built: BuiltTables,
        previous: PreviousIndex | None,
        total: DecodeStats,
        covered: list[CoveredSource],
    ) -> Manifest:
        uploads: list[Coroutine[Any, Any, Any]] = [
            publication.upload(built.files, previous.manifest.files if previous else None),
            publication.upload(built.part),
            publication.put_covered(covered),
        ]
        files, new, _ = await concurrently(uploads, len(uploads))
        parts = [_extended(part, built, publication.generation) for part in (previous.parts if previous else [])]
        if built.part:
            rows = sum(file.rows for file in new["tasks"])
            parts.append(Part(publication.folder, new, rows, 0, [(publication.generation, publication.generation)]))
        return Manifest(
            schema=SCHEMA_VERSION,
            generation=publication.generation,
            build=publication.folder,
            files=files,
            covered=sources_digest(self._sources),
            closing=self._job.closing,
            counts=built.counts,
            first_ns=built.first_ns,
            last_ns=built.last_ns,
            ray_version=built.ray_version,
            seconds=round(time.monotonic() - self._began, 3),
            events=total.events,
            long_bytes=total.long_bytes,
            parts=parts,
            task_counts=built.task_counts,
            key_hash=await asyncio.to_thread(key_hash),
            covered_in=publication.folder,
        )

    async def _compact(self, manifest: Manifest) -> Manifest:
        """Replace several parts by one, in a new generation. If a part is damaged, the next fold rebuilds it."""
        chosen = choose_parts(manifest.parts)
        if not chosen:
            return manifest
        publication = Publication(self._indexes, self._layout, self._job.ref, manifest.generation + 1)
        previous, scratch = self._open(manifest, set()), self._scratch()
        rows, all_rows = sum(part.rows for part in chosen), sum(part.rows for part in manifest.parts)
        size = DecodeStats(0, rows * TYPICAL_ROW_BYTES, manifest.long_bytes * rows // max(all_rows, 1))
        partitions = partitions_for(self._settings, size)
        memory = self._settings.index_memory
        pool = self._pool if isinstance(self._pool, ProcessPoolExecutor) else None  # a cluster does not have the files
        try:
            written = await asyncio.to_thread(compact, previous, chosen, scratch, partitions, memory=memory, pool=pool)
        except (IndexDamaged, StoreError, duckdb.Error) as error:
            log.warning("index compaction failed, keeping the parts as they are", extra={"reason": str(error)})
            return manifest
        replaced_by = await asyncio.to_thread(_replaced_by, previous)
        files = await publication.upload(written)
        batches = join_ranges(batch for part in chosen for batch in part.batches)
        replacement = Part(publication.folder, files, sum(file.rows for file in files["tasks"]), 0, batches)
        parts = parts_after(previous, chosen, replacement, replaced_by)
        compacted = msgspec.structs.replace(
            manifest, generation=publication.generation, build=publication.folder, parts=parts
        )
        published = await publication.publish(compacted)
        await delete_old_generations(self._indexes, self._layout, self._job.ref, published.generation)
        return published


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _replaced_by(previous: PreviousIndex) -> dict[str, set[str]]:
    with duckdb.connect() as database:
        return previous.replaced_by(database)


def _extended(part: Part, built: BuiltTables, generation: int) -> Part:
    """Return the manifest entry of an older part for the next generation."""
    batches = part.batches
    if part.name in built.touched_parts:
        batches = join_ranges([*batches, (generation, generation)])
    return msgspec.structs.replace(part, superseded=built.superseded.get(part.name, 0), batches=batches)


def _previous_stats(previous: PreviousIndex | None) -> DecodeStats:
    if previous is None or previous.has_lost_parts:
        return DecodeStats()
    manifest = previous.manifest
    return DecodeStats(manifest.events, 0, manifest.long_bytes)


def estimate(sources: list[Source]) -> DecodeStats:
    """Estimate the amount of data to decode, from a typical compression ratio and without long texts."""
    raw = sum(source.size * (1 if source.key.endswith(".jsonl") else _COMPRESSION_RATIO) for source in sources)
    return DecodeStats(raw_bytes=raw)


def partitions_for(settings: Settings, decoded: DecodeStats, min_count: int = 1) -> Partitions:
    """Return enough partitions for each to fit into the memory of the process that folds it."""
    memory = decoded.raw_bytes * _MEMORY_PER_BYTE + decoded.long_bytes * _MEMORY_PER_LONG_BYTE
    return Partitions(max(min_count, math.ceil(memory * available_cores() / settings.index_memory)))


def main() -> None:
    start_work(_NICENESS)
    with start_pool() as pool:
        log.addHandler(_ReportedWarnings())  # not in the pool, whose processes share standard output
        for line in sys.stdin.buffer:
            _serve(msgspec.json.decode(line, type=FoldJob), pool)


class _ReportedWarnings(logging.Handler):
    """Reports warnings to the server, because nobody reads the error output of a fold that succeeds."""

    def emit(self, record: logging.LogRecord) -> None:
        write_report(FoldReport(warning=record.getMessage(), reason=getattr(record, "reason", "")))


def _serve(job: FoldJob, pool: Executor) -> None:
    """Fold one session and report the result. If the store is unavailable, end the process with all its requests."""

    def report_progress(progress: float, detail: str) -> None:
        write_report(FoldReport(progress, detail))

    def report_manifest(manifest: Manifest) -> None:
        write_report(FoldReport(1.0, "done", manifest))

    try:
        asyncio.run(fold(job, report_progress, pool, report_manifest))
    except StoreError as error:
        write_report(FoldReport(outage=str(error)))
        sys.exit(1)
    write_report(FoldReport(1.0, ready=True))


if __name__ == "__main__":
    main()
