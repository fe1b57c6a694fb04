"""The manifest, which makes one generation of an index visible. It is written last, and never overwritten."""

from collections import Counter
from typing import Annotated

import msgspec

from rayhistory.errors import IndexDamaged, ObjectExists, ObjectNotFound
from rayhistory.index.fold.partitions import MAX_PARTITIONS
from rayhistory.sessions import MAX_RECORD_BYTES, Layout, SessionRef, read_record
from rayhistory.sessions.records import Closing, Count
from rayhistory.sessions.ref import is_safe_component
from rayhistory.storage import Store

SCHEMA_VERSION = 13
"""Incremented whenever the tables change. Indexes with another version belong to other releases."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MAX_TABLES = 1000
_MAX_GENERATIONS = 32
_USED_PER_SCHEMA = 2
"""The latest generation, and the one before, which may still be read."""

MERGED_PREFIX = "merged."
"""The prefix of tables that only the next fold reads. All others are served."""


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
    """Ids, entrypoint and metadata of each job, for the search over sessions."""


class Manifest(msgspec.Struct):
    schema: int
    generation: int
    build: str
    """The folder with the tables of this generation."""
    files: dict[str, list[Count]]
    """The sizes of the files of each table."""
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
    """The number of bytes by which the rows of tasks exceed their typical size."""

    @property
    def size(self) -> int:
        return sum(map(sum, self.files.values()))

    def sizes(self, table: str) -> list[int]:
        """Return the sizes of the files of a table."""
        if table not in self.files:
            raise IndexDamaged(f"generation {self.generation} of an index has no table {table}")
        return self.files[table]


def parse_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest; return None if it is invalid or has another schema version.

    Its names become paths, so that a name that is not a safe path component makes it invalid.
    """
    manifest = read_record(data, Manifest)
    if manifest is None or manifest.schema != SCHEMA_VERSION or len(manifest.files) > _MAX_TABLES:
        return None
    names_are_safe = all(map(is_safe_component, (manifest.build, *manifest.files)))
    return manifest if names_are_safe and max(map(len, manifest.files.values()), default=0) <= MAX_PARTITIONS else None


async def read_latest_manifest(store: Store, layout: Layout, ref: SessionRef) -> Manifest | None:
    """Return the manifest of the highest generation with this schema version; None if there is none.

    Another release may use the same store, and store generations with its own schema version beside ours.
    """
    for generation in await _newest_generations(store, layout, ref):
        manifest = parse_manifest(await _read_manifest(store, layout, ref, generation))
        if manifest is not None:
            return manifest
    return None


async def used_generations(store: Store, layout: Layout, ref: SessionRef) -> tuple[set[int], set[str]]:
    """Return the generations and the folders that a release may still read: the last two of each schema version."""
    generations, folders = set(), set()
    by_schema: Counter[int] = Counter()
    for generation in await _newest_generations(store, layout, ref):
        head = read_record(await _read_manifest(store, layout, ref, generation), _ManifestHead)
        if head is not None and by_schema[head.schema] < _USED_PER_SCHEMA:
            by_schema[head.schema] += 1
            generations.add(generation)
            folders.add(head.build)
    return generations, folders


class _ManifestHead(msgspec.Struct):
    """The fields that manifests of all schema versions have."""

    schema: int
    build: str


async def _newest_generations(store: Store, layout: Layout, ref: SessionRef) -> list[int]:
    """Return the highest generations first: not all, because anybody who writes the store can add manifests."""
    listing = await store.list_folder(layout.index_prefix(ref))
    generations = (layout.parse_manifest_key(info.key) for info in listing.objects)
    return sorted((number for number in generations if number is not None), reverse=True)[:_MAX_GENERATIONS]


async def _read_manifest(store: Store, layout: Layout, ref: SessionRef, generation: int) -> bytes:
    try:
        return await store.get_range(layout.manifest_key(ref, generation), 0, MAX_RECORD_BYTES)
    except ObjectNotFound:
        return b""


async def next_generation(store: Store, layout: Layout, ref: SessionRef) -> int:
    listing = await store.list_folder(layout.index_prefix(ref))
    numbers = [layout.parse_manifest_key(info.key) or 0 for info in listing.objects]
    return max(numbers, default=0) + 1


async def publish_manifest(store: Store, layout: Layout, ref: SessionRef, manifest: Manifest) -> Manifest:
    """Make the generation visible; if another process has published it first, return its manifest.

    If that process is of another release, publish under the next number.
    """
    while True:
        try:
            await store.create(layout.manifest_key(ref, manifest.generation), msgspec.json.encode(manifest))
        except ObjectExists:
            other = parse_manifest(await _read_manifest(store, layout, ref, manifest.generation))
            if other is not None:
                return other
            manifest = msgspec.structs.replace(manifest, generation=await next_generation(store, layout, ref))
        else:
            return manifest
