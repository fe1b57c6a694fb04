"""The manifest, which makes one generation of an index visible. It is written last, and never overwritten.

A generation is a list of immutable files. Small tables are written whole. Task tables are stored in parts: each fold
of new objects adds a part, and compaction replaces several parts by one. A generation shares unchanged files with the
previous one.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import msgspec

from rayhistory.errors import IndexDamaged, ObjectExists, ObjectNotFound
from rayhistory.index.batch_ranges import BatchRange
from rayhistory.sessions import MAX_RECORD_BYTES, Layout, SessionRef, read_record
from rayhistory.sessions.records import Closing, Count
from rayhistory.sessions.ref import is_safe_component
from rayhistory.storage import Store

SCHEMA_VERSION = 15
"""Incremented with each change of the tables; a test checks this. Indexes with another version are not read."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MAX_TABLES = 1000
_MAX_PARTS = 1000
_MAX_FILES_PER_TABLE = 10_000
_MAX_GENERATIONS = 32
_USED_PER_SCHEMA = 2
"""Number of generations that are kept: the latest, and the one before it, which may still be read."""

MERGED_PREFIX = "merged."
"""The prefix of tables that only the next fold reads. All other tables are served."""


_PARTITION_TABLES = (
    "tasks", "profile_events", "merged.task_definitions", "merged.task_updates", "merged.keys", "merged.depends",
    "merged.unexecuted",
)  # fmt: skip
"""The tables that every part has. Each has one file per range of task ids."""


class SessionCounts(msgspec.Struct, omit_defaults=True):
    """Counts that lists of sessions show without opening the index."""

    jobs: dict[str, Count] = {}
    tasks: Count = 0
    failed_tasks: Count = 0
    actors: Count = 0
    nodes: Count = 0
    gaps: Count = 0
    size_bytes: Count = 0
    job_texts: list[str] = []
    """Ids, entrypoint and metadata of each job, for the search in the list of sessions."""


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file of a table."""

    folder: str
    number: Count
    size: Count
    rows: Count = 0
    digest: str = ""
    """The SHA-256 of the file's content."""


Tables = dict[str, list[StoredFile]]
"""The files of each table."""


class Part(msgspec.Struct, frozen=True):
    """An immutable set of rows of the task tables. Its files are ranges of task ids, in order."""

    name: str
    files: Tables
    rows: Count
    """Number of rows of `tasks`."""
    superseded: Count = 0
    """Number of attempts in this part that later parts replace."""
    batches: list[BatchRange] = []
    """Ranges of generations. The objects that were read for them must be read again if the part is lost."""


class Manifest(msgspec.Struct):
    schema: int
    generation: int
    build: str
    """The folder with the new files of this generation. The folder's name identifies the generation."""
    files: Tables
    """The files of the tables that are not stored in parts."""
    covered: str
    """A digest of the names and versions of all sources."""
    closing: Closing | None
    counts: SessionCounts
    first_ns: Nanoseconds | None
    last_ns: Nanoseconds | None
    ray_version: str | None
    seconds: float
    events: int
    long_bytes: int = 0
    """Number of bytes by which task rows exceed their typical size."""
    parts: list[Part] = []
    task_counts: dict[str, int] = {}
    """Counts of tasks by condition. Each fold of new objects updates them."""
    key_hash: int = 0
    """A hash that would differ if another release of DuckDB hashed keys in another way."""
    covered_in: str = ""
    """The folder with the list of covered sources."""
    folders: list[str] = []
    """All folders with files of this generation, so that releases with another schema version do not delete them."""

    @property
    def size(self) -> int:
        return sum(file.size for _, file in self.all_files())

    @property
    def tables(self) -> list[str]:
        return [*self.files, *dict.fromkeys(name for part in self.parts for name in part.files)]

    def all_files(self) -> Iterator[tuple[str, StoredFile]]:
        """Yield each file with the name of its table."""
        for tables in (self.files, *(part.files for part in self.parts)):
            for name, files in tables.items():
                yield from ((name, file) for file in files)

    def files_of(self, table: str) -> list[StoredFile]:
        """Return the files of a table, ordered by part."""
        if table in self.files:
            return self.files[table]
        found = [file for part in self.parts for file in part.files.get(table, ())]
        if not found:
            raise self.missing_table(table)
        return found

    def missing_table(self, table: str) -> IndexDamaged:
        return IndexDamaged(f"index is damaged: generation {self.generation} lacks the table {table}")


def parse_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest; return None if it is invalid or has another schema version.

    Names in it become paths. So a name that is not a safe path component makes it invalid.
    """
    manifest = read_record(data, Manifest)
    if manifest is None or manifest.schema != SCHEMA_VERSION or len(manifest.parts) > _MAX_PARTS:
        return None
    all_tables = (manifest.files, *(part.files for part in manifest.parts))
    if any(len(tables) > _MAX_TABLES for tables in all_tables):
        return None
    if not all(map(_is_complete, manifest.parts)):
        return None
    names = {
        manifest.build,
        manifest.covered_in or manifest.build,
        *manifest.tables,
        *(part.name for part in manifest.parts),
        *manifest.folders,
    }
    names |= {file.folder for _, file in manifest.all_files()}
    most_files = max((len(files) for tables in all_tables for files in tables.values()), default=0)
    return manifest if all(map(is_safe_component, names)) and most_files <= _MAX_FILES_PER_TABLE else None


def _is_complete(part: Part) -> bool:
    """Return whether a part has all tables, each with the same number of files."""
    counts = {len(part.files.get(name, ())) for name in _PARTITION_TABLES}
    return len(counts) == 1 and 0 not in counts and len(part.files.get("task_list", ())) == 1


async def read_latest_manifest(store: Store, layout: Layout, ref: SessionRef) -> Manifest | None:
    """Return the manifest of the highest generation with this schema version; None if there is none.

    Other releases may store generations with other schema versions beside ours.
    """
    return await _first_readable(store, layout, ref, await _newest_generations(store, layout, ref))


LatestIndex = tuple[Manifest | None, int]
"""The latest manifest of a session, and the number of the next generation."""


async def read_latest_and_next(store: Store, layout: Layout, ref: SessionRef) -> LatestIndex:
    """Return the latest manifest and the next generation's number, from one listing."""
    generations = await _newest_generations(store, layout, ref)
    return await _first_readable(store, layout, ref, generations), max(generations, default=0) + 1


async def _first_readable(store: Store, layout: Layout, ref: SessionRef, generations: list[int]) -> Manifest | None:
    for generation in generations:
        manifest = parse_manifest(await _read_manifest(store, layout, ref, generation))
        if manifest is not None:
            return manifest
    return None


async def used_generations(store: Store, layout: Layout, ref: SessionRef) -> tuple[set[int], set[str]]:
    """Return the generations and folders that some release may still read: the last two of each schema version."""
    generations, folders = set(), set()
    by_schema: Counter[int] = Counter()
    for generation in await _newest_generations(store, layout, ref):
        head = read_record(await _read_manifest(store, layout, ref, generation), _ManifestHead)
        if head is not None and by_schema[head.schema] < _USED_PER_SCHEMA:
            by_schema[head.schema] += 1
            generations.add(generation)
            folders |= {head.build, *head.folders}
    return generations, folders


class _ManifestHead(msgspec.Struct):
    """The fields that manifests of all schema versions have."""

    schema: int
    build: str
    folders: list[str] = []


async def _newest_generations(store: Store, layout: Layout, ref: SessionRef) -> list[int]:
    """Return the numbers of the newest generations, the newest first.

    Only some are returned, because anybody who can write to the store can add manifests.
    """
    listing = await store.list_folder(layout.index_prefix(ref))
    generations = (layout.parse_manifest_key(info.key) for info in listing.objects)
    return sorted((number for number in generations if number is not None), reverse=True)[:_MAX_GENERATIONS]


async def _read_manifest(store: Store, layout: Layout, ref: SessionRef, generation: int) -> bytes:
    try:
        return await store.get_range(layout.manifest_key(ref, generation), 0, MAX_RECORD_BYTES)
    except ObjectNotFound:
        return b""


async def next_generation(store: Store, layout: Layout, ref: SessionRef) -> int:
    return max(await _newest_generations(store, layout, ref), default=0) + 1


async def publish_manifest(store: Store, layout: Layout, ref: SessionRef, manifest: Manifest) -> Manifest:
    """Publish the generation. If another process has published one since, return its manifest.

    The number was chosen when the fold began, so only one of two concurrent folds can create it. If the other process
    has another schema version, publish under the next number.
    """
    while True:
        try:
            await store.create(layout.manifest_key(ref, manifest.generation), msgspec.json.encode(manifest))
        except ObjectExists:
            latest = await read_latest_manifest(store, layout, ref)
            if latest is not None and latest.generation >= manifest.generation:
                return latest
            manifest = msgspec.structs.replace(manifest, generation=await next_generation(store, layout, ref))
        else:
            return manifest
