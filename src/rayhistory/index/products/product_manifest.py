"""The manifest of a product, which makes one build of it visible. It is written last, and never overwritten."""

from collections import Counter
from typing import Annotated, Any

import msgspec

from rayhistory.errors import ObjectExists, ObjectNotFound
from rayhistory.sessions import Layout, SessionRef, read_record
from rayhistory.sessions.records import Closing, Count
from rayhistory.sessions.ref import is_safe_component
from rayhistory.storage import Store

MAX_PREVIEW_BYTES = 16 << 10
_MAX_MANIFEST_BYTES = 1 << 20
_MAX_FILES = 2000
_MAX_GENERATIONS = 32
_USED_PER_VERSION = 2
"""Number of generations that are kept: the latest, and the one before it, which may still be read."""


class ProductFile(msgspec.Struct, omit_defaults=True):
    """One file of a product. A later build may refer to a file of an earlier one."""

    build: str
    """The folder of the build that wrote the file."""
    size: Count
    sha256: Annotated[str, msgspec.Meta(max_length=64)] = ""


class ProductManifest(msgspec.Struct, rename={"preview": "facts"}):
    """One build of one product of one session."""

    product: str
    version: int
    generation: int
    build: str
    """The folder with the files that this build wrote."""
    files: dict[str, ProductFile]
    tables_generation: int
    tables_covered: str
    """Digest of the objects that were covered by the tables of this build."""
    closing: Closing | None
    preview: dict[str, Any]
    """Small values that lists show without opening a file."""
    seconds: float

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


def parse_product_manifest(data: bytes) -> ProductManifest | None:
    """Parse a manifest of any version; return None if it is invalid.

    Names in it become paths. So a name that is not a safe path component makes it invalid.
    """
    manifest = read_record(data, ProductManifest) if len(data) <= _MAX_MANIFEST_BYTES else None
    if manifest is None or len(manifest.files) > _MAX_FILES:
        return None
    names = (manifest.build, *manifest.files, *(file.build for file in manifest.files.values()))
    is_small = len(msgspec.json.encode(manifest.preview)) <= MAX_PREVIEW_BYTES
    return manifest if is_small and all(map(is_safe_component, names)) else None


async def read_latest_product(
    store: Store, layout: Layout, ref: SessionRef, product: str, version: int | None
) -> ProductManifest | None:
    """Return the manifest of the highest generation with this version, or with any if it is None; None without one.

    Other releases may store generations with other versions beside ours.
    """
    for generation in await _newest_generations(store, layout, ref, product):
        manifest = await _read(store, layout, ref, product, generation)
        if manifest is not None and manifest.product == product and version in (None, manifest.version):
            return manifest
    return None


async def next_product_generation(store: Store, layout: Layout, ref: SessionRef, product: str) -> int:
    return max(await _newest_generations(store, layout, ref, product), default=0) + 1


async def publish_product(store: Store, layout: Layout, ref: SessionRef, manifest: ProductManifest) -> ProductManifest:
    """Publish the build. If another process has published this generation first, return its manifest.

    If that process has another version, publish under the next number.
    """
    while True:
        key = layout.product_manifest_key(ref, manifest.product, manifest.generation)
        try:
            await store.create(key, msgspec.json.encode(manifest))
        except ObjectExists:
            other = await _read(store, layout, ref, manifest.product, manifest.generation)
            if other is not None and other.version == manifest.version:
                return other
            generation = await next_product_generation(store, layout, ref, manifest.product)
            manifest = msgspec.structs.replace(manifest, generation=generation)
        else:
            return manifest


async def used_product_manifests(
    store: Store, layout: Layout, ref: SessionRef, product: str
) -> list[ProductManifest] | None:
    """Return the manifests that some release may still read: the last two of each version, newest first.

    Return None if one of the newest manifests cannot be parsed, because a later release may have written it.
    """
    used = []
    by_version: Counter[int] = Counter()
    for generation in await _newest_generations(store, layout, ref, product):
        manifest = await _read(store, layout, ref, product, generation)
        if manifest is None:
            return None
        by_version[manifest.version] += 1
        if by_version[manifest.version] <= _USED_PER_VERSION:
            used.append(manifest)
    return used


async def unused_product_keys(store: Store, layout: Layout, ref: SessionRef, product: str, before: int) -> list[str]:
    """Return the keys of old builds, with a generation below `before`, that no release reads any more."""
    manifests = await used_product_manifests(store, layout, ref, product)
    if manifests is None:
        return []
    used = {layout.product_manifest_key(ref, product, manifest.generation) for manifest in manifests}
    for manifest in manifests:
        used |= {layout.product_file_key(ref, product, file.build, name) for name, file in manifest.files.items()}
    prefix = layout.product_prefix(ref, product)
    return [
        info.key
        async for info in store.list_all(prefix)
        if info.key not in used and (_generation_of(layout, prefix, info.key) or before) < before
    ]


def _generation_of(layout: Layout, prefix: str, key: str) -> int | None:
    """Return the generation of a manifest, or of a file in a folder `<n>-<build>`."""
    manifest = layout.parse_product_manifest_key(key)
    number = key.removeprefix(prefix + "/").partition("-")[0]
    return manifest or (int(number) if number.isascii() and number.isdigit() else None)


async def _newest_generations(store: Store, layout: Layout, ref: SessionRef, product: str) -> list[int]:
    """Return the numbers of the newest generations, the newest first.

    Only some are returned, because anybody who can write to the store can add manifests.
    """
    listing = await store.list_folder(layout.product_prefix(ref, product))
    numbers = (layout.parse_product_manifest_key(info.key) for info in listing.objects)
    return sorted((number for number in numbers if number is not None), reverse=True)[:_MAX_GENERATIONS]


async def _read(store: Store, layout: Layout, ref: SessionRef, product: str, generation: int) -> ProductManifest | None:
    key = layout.product_manifest_key(ref, product, generation)
    try:
        return parse_product_manifest(await store.get_range(key, 0, _MAX_MANIFEST_BYTES + 1))
    except ObjectNotFound:
        return None
