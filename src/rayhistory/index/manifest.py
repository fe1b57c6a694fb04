"""The manifest: what makes one generation of an index exist. It is written last, and only if nobody else was first."""

import msgspec

from rayhistory.errors import DamagedIndex, ObjectExists, ObjectNotFound
from rayhistory.layout import Layout, SessionRef
from rayhistory.storage import Store

SCHEMA = 7
"""Counted up whenever the tables change: an index of another schema is built again, never guessed at."""


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

    jobs: dict[str, int] = {}
    tasks: int = 0
    failed_tasks: int = 0
    actors: int = 0
    nodes: int = 0
    gaps: int = 0
    size_bytes: int = 0


class Manifest(msgspec.Struct):
    schema: int
    generation: int
    build: str
    """The folder with the tables of this generation."""
    files: dict[str, list[int]]
    """Sizes of the files of each table: one, or as many as the session was folded in parts."""
    covered: str
    """A digest of the names and sizes of everything that was folded."""
    closing: Closing | None
    counts: Counts
    first_ns: int | None
    last_ns: int | None
    ray_version: str | None
    seconds: float
    events: int

    @property
    def size(self) -> int:
        return sum(map(sum, self.files.values()))


async def read_latest(store: Store, layout: Layout, ref: SessionRef) -> Manifest | None:
    """The manifest of the highest generation, if it is one of ours and of this schema."""
    listing = await store.list_folder(layout.index_prefix(ref))
    generations = [layout.parse_manifest_key(info.key) for info in listing.objects]
    highest = max((number for number in generations if number is not None), default=None)
    if highest is None:
        return None
    try:
        manifest = msgspec.json.decode(await store.get(layout.manifest_key(ref, highest)), type=Manifest)
    except (msgspec.DecodeError, ObjectNotFound):
        return None
    return manifest if manifest.schema == SCHEMA else None


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
