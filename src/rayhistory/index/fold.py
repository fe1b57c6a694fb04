"""The fold of one session, as a process of its own: `python -m rayhistory.index.fold` with a FoldJob on standard input.

It runs apart from the server, so that its memory and its CPU are its own, and speaks on standard output: one JSON line
per step of progress, and the manifest at the end. When an earlier generation covers a part of what there is to read,
its merged rows are taken and only the rest is read.
"""

import asyncio
import contextlib
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import ObjectNotFound, StoreError
from rayhistory.events.tables import TABLES
from rayhistory.index.build import Built, Report, build
from rayhistory.index.decoding import decode_all
from rayhistory.index.derive import merged_file
from rayhistory.index.manifest import SCHEMA, Closing, Manifest, next_generation, publish, read_latest
from rayhistory.index.overlay import index_store
from rayhistory.index.sources import Source, digest, list_sources
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.records import NodeSeal
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store

_COVERED = "covered.json"


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


class _Facts(msgspec.Struct):
    """What the manifest says of the fold itself."""

    sources: list[Source]
    events: int
    began: float


async def fold(job: FoldJob, report: Report) -> Manifest:
    began = time.monotonic()
    settings = Settings(**job.settings)
    scratch = Path(job.scratch)
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    indexes = index_store(store, settings)
    try:
        sources = await list_sources(store, layout, job.ref)
        before, covered = await _earlier(indexes, layout, job.ref, scratch) if not job.fresh else (None, set())
        fresh = [source for source in sources if (source.key, source.size) not in covered]
        report(0.02, f"{len(fresh)} of {len(sources)} objects to read")
        events = await decode_all(
            settings, fresh, scratch, lambda part, count: report(0.02 + 0.68 * part, f"{count:,} events read")
        )
        report(0.7, f"{events:,} events read, merging")
        seals = await _read_seals(store, layout, job.ref)
        built = await asyncio.to_thread(build, settings, scratch, job.closing, seals, report)
        report(0.95, "writing the index")
        facts = _Facts(sources, events + (before.events if before else 0), began)
        return await _seal(indexes, layout, job, built, facts)
    finally:
        await store.close()


async def _earlier(
    store: Store, layout: Layout, ref: SessionRef, scratch: Path
) -> tuple[Manifest | None, set[tuple[str, int]]]:
    """The merged rows of the latest generation, put among the rows to merge, and what they were made from."""
    before = await read_latest(store, layout, ref)
    if before is None:
        return None, set()
    try:
        listed = msgspec.json.decode(await store.get(f"{layout.index_prefix(ref)}/{before.build}/{_COVERED}"))
        names = {table.name: merged_file(table.name) for table in TABLES}
        tables = {n: await store.get(layout.index_file_key(ref, before.build, file)) for n, file in names.items()}
    except (ObjectNotFound, msgspec.DecodeError):
        return None, set()
    if any(len(data) != before.files[names[name]] for name, data in tables.items()):
        return None, set()
    for name, data in tables.items():
        await asyncio.to_thread((scratch / f"{name}-earlier.parquet").write_bytes, data)
    return before, {(str(key), int(size)) for key, size in listed}


async def _read_seals(store: Store, layout: Layout, ref: SessionRef) -> list[NodeSeal]:
    keys = [info.key async for info in store.list_all(layout.node_seals_prefix(ref))]
    seals = []
    for key in keys:
        try:
            seals.append(msgspec.json.decode(await store.get(key), type=NodeSeal))
        except (msgspec.DecodeError, ObjectNotFound):
            continue
    return seals


async def _seal(store: Store, layout: Layout, job: FoldJob, built: Built, facts: _Facts) -> Manifest:
    generation = await next_generation(store, layout, job.ref)
    folder = f"{generation}-{secrets.token_hex(4)}"
    for name, path in built.files.items():
        await store.put(layout.index_file_key(job.ref, folder, name), path)
    covered = msgspec.json.encode([(source.key, source.size) for source in facts.sources])
    await store.put(f"{layout.index_prefix(job.ref)}/{folder}/{_COVERED}", covered)
    built.counts.size_bytes = sum(source.size for source in facts.sources)
    manifest = Manifest(
        schema=SCHEMA,
        generation=generation,
        build=folder,
        files={name: path.stat().st_size for name, path in built.files.items()},
        covered=digest(facts.sources),
        closing=job.closing,
        counts=built.counts,
        first_ns=built.first_ns,
        last_ns=built.last_ns,
        ray_version=built.ray_version,
        seconds=round(time.monotonic() - facts.began, 3),
        events=facts.events,
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
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=FoldJob)

    def say(line: FoldReport) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()

    manifest = asyncio.run(fold(job, lambda progress, detail: say(FoldReport(progress, detail))))
    say(FoldReport(1.0, "done", manifest))


if __name__ == "__main__":
    main()
