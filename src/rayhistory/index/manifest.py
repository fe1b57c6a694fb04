"""The manifest, which makes one generation of an index visible. It is written last, and never overwritten."""

from typing import Annotated

import msgspec

from rayhistory.errors import IndexDamaged, ObjectExists, ObjectNotFound
from rayhistory.index.fold.partitions import MAX_PARTITIONS
from rayhistory.sessions import MAX_RECORD_BYTES, Layout, SessionRef, read_record
from rayhistory.sessions.records import Closing, Count
from rayhistory.sessions.ref import is_safe_component
from rayhistory.storage import Store

SCHEMA_VERSION = 11
"""Incremented whenever the tables change. An index with another version is rebuilt."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MAX_TABLES = 1000

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
    """Return the manifest of the highest generation; None if there is none with this schema version."""
    listing = await store.list_folder(layout.index_prefix(ref))
    generations = [layout.parse_manifest_key(info.key) for info in listing.objects]
    highest = max((number for number in generations if number is not None), default=None)
    if highest is None:
        return None
    try:
        return parse_manifest(await store.get_range(layout.manifest_key(ref, highest), 0, MAX_RECORD_BYTES))
    except ObjectNotFound:
        return None


async def next_generation(store: Store, layout: Layout, ref: SessionRef) -> int:
    listing = await store.list_folder(layout.index_prefix(ref))
    numbers = [layout.parse_manifest_key(info.key) or 0 for info in listing.objects]
    return max(numbers, default=0) + 1


async def publish_manifest(store: Store, layout: Layout, ref: SessionRef, manifest: Manifest) -> Manifest:
    """Make the generation visible; if another process has published it first, return its manifest."""
    try:
        await store.create(layout.manifest_key(ref, manifest.generation), msgspec.json.encode(manifest))
    except ObjectExists:
        other = await read_latest_manifest(store, layout, ref)
        if other is None:
            raise IndexDamaged(f"manifest {manifest.generation} of {ref.path} cannot be read") from None
        return other
    return manifest
