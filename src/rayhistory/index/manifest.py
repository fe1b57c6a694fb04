"""The manifest: what makes one generation of an index exist. It is written last, and only if nobody else was first."""

from typing import Annotated

import msgspec

from rayhistory.errors import DamagedIndex, ObjectExists, ObjectNotFound
from rayhistory.index.parts import MOST_PARTS
from rayhistory.layout import LARGEST_RECORD, Layout, SessionRef, read_record
from rayhistory.layout.records import Count
from rayhistory.layout.session import is_safe_component
from rayhistory.storage import Store

SCHEMA = 10
"""Counted up whenever the tables change: an index of another schema is built again, never guessed at."""


Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MOST_TABLES = 1000

MERGED = "merged."
"""The tables whose names begin so are for the next fold; the others are served."""


class Closing(msgspec.Struct, frozen=True):
    """How the session ended, as far as known when the index was built."""

    ns: int
    clean: bool
    open: bool = False
    """It went on, and nothing more is known of it: what was open stays open."""


class Counts(msgspec.Struct, omit_defaults=True):
    """What lists of sessions show, without opening the index."""

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
    """Sizes of the files of each table: one, or as many as the session was folded in parts."""
    covered: str
    """A digest of the names and sizes of everything that was folded."""
    closing: Closing | None
    counts: Counts
    first_ns: Nanoseconds | None
    last_ns: Nanoseconds | None
    ray_version: str | None
    seconds: float
    events: int
    long_bytes: int = 0
    """By how much the rows of tasks are longer than usual."""

    @property
    def size(self) -> int:
        return sum(map(sum, self.files.values()))

    def sizes(self, table: str) -> list[int]:
        """Of the files of a table."""
        if table not in self.files:
            raise DamagedIndex(f"generation {self.generation} of an index has no table {table}")
        return self.files[table]


def parse_manifest(data: bytes) -> Manifest | None:
    """None for what is none, or of another schema. Its names become paths: those that lead elsewhere make it none."""
    manifest = read_record(data, Manifest)
    if manifest is None or manifest.schema != SCHEMA or len(manifest.files) > _MOST_TABLES:
        return None
    names_are_safe = all(map(is_safe_component, (manifest.build, *manifest.files)))
    return manifest if names_are_safe and max(map(len, manifest.files.values()), default=0) <= MOST_PARTS else None


async def read_latest(store: Store, layout: Layout, ref: SessionRef) -> Manifest | None:
    """The manifest of the highest generation, if it is one of ours and of this schema."""
    listing = await store.list_folder(layout.index_prefix(ref))
    generations = [layout.parse_manifest_key(info.key) for info in listing.objects]
    highest = max((number for number in generations if number is not None), default=None)
    if highest is None:
        return None
    try:
        return parse_manifest(await store.get_range(layout.manifest_key(ref, highest), 0, LARGEST_RECORD))
    except ObjectNotFound:
        return None


async def next_generation(store: Store, layout: Layout, ref: SessionRef) -> int:
    listing = await store.list_folder(layout.index_prefix(ref))
    numbers = [layout.parse_manifest_key(info.key) or 0 for info in listing.objects]
    return max(numbers, default=0) + 1


async def publish(store: Store, layout: Layout, ref: SessionRef, manifest: Manifest) -> Manifest:
    """Makes the generation exist; when another builder was first, theirs is taken."""
    try:
        await store.create(layout.manifest_key(ref, manifest.generation), msgspec.json.encode(manifest))
    except ObjectExists:
        theirs = await read_latest(store, layout, ref)
        if theirs is None:
            raise DamagedIndex(f"manifest {manifest.generation} of {ref.path} cannot be read") from None
        return theirs
    return manifest
