"""Read the files of a product, as local copies or by range from the store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayhistory.errors import IndexDamaged, ObjectNotFound, ProductNotBuilt
from rayhistory.index.index_objects import PromisedObject
from rayhistory.index.products.product_manifest import ProductFile, ProductManifest
from rayhistory.index.table_cache import TableCache
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.keys import PRODUCTS_FOLDER
from rayhistory.storage import Store


class ProductFiles:
    """The files of all products in a store."""

    def __init__(self, store: Store, layout: Layout, cache: TableCache) -> None:
        self._store = store
        self._layout = layout
        self._cache = cache

    async def fetch(self, ref: SessionRef, manifest: ProductManifest, name: str) -> Path:
        """Return a local copy of a file. Raise IndexDamaged if it is missing or damaged."""
        file = _file(ref, manifest, name)
        key = self._layout.product_file_key(ref, manifest.product, file.build, name)
        path = self._cache.folder(ref, f"{PRODUCTS_FOLDER}/{manifest.product}/{file.build}") / name
        return await self._cache.file(key, PromisedObject(file.size, file.sha256), path, _message(ref, manifest, name))

    async def read(self, ref: SessionRef, manifest: ProductManifest, name: str, span: tuple[int, int]) -> bytes:
        """Return the bytes [start, end) of a file from the store; raise IndexDamaged if it does not have them."""
        file, (start, end) = _file(ref, manifest, name), span
        key = self._layout.product_file_key(ref, manifest.product, file.build, name)
        try:
            data = await self._store.get_range(key, start, end)
        except ObjectNotFound:
            raise IndexDamaged(_message(ref, manifest, name).format("missing")) from None
        if len(data) != end - start:
            raise IndexDamaged(_message(ref, manifest, name).format("damaged"))
        return data


class OpenProduct:
    """One build of a product, with its files.

    If a file is damaged, the product is rebuilt in the background, and ProductNotBuilt is raised.
    """

    def __init__(
        self,
        ref: SessionRef,
        manifest: ProductManifest,
        files: ProductFiles,
        on_damage: Callable[[ProductManifest, str], ProductNotBuilt],
        *,
        is_current: bool,
    ) -> None:
        self.manifest = manifest
        self.is_current = is_current
        """False if the session has grown since this build. A newer build has been started."""
        self._ref = ref
        self._files = files
        self._on_damage = on_damage

    @property
    def preview(self) -> dict[str, Any]:
        return self.manifest.preview

    async def file(self, name: str) -> Path:
        """Return a local copy of a file. Open it soon, because the local cache may evict it."""
        try:
            return await self._files.fetch(self._ref, self.manifest, name)
        except IndexDamaged as error:
            raise self.damaged(str(error)) from None

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of a file, from the store."""
        try:
            return await self._files.read(self._ref, self.manifest, name, (start, end))
        except IndexDamaged as error:
            raise self.damaged(str(error)) from None

    def damaged(self, reason: str) -> ProductNotBuilt:
        """Start a rebuild of the product because its content is damaged. Return the error to raise."""
        return self._on_damage(self.manifest, reason)


def _file(ref: SessionRef, manifest: ProductManifest, name: str) -> ProductFile:
    if name not in manifest.files:
        raise IndexDamaged(_message(ref, manifest, name).format("missing"))
    return manifest.files[name]


def _message(ref: SessionRef, manifest: ProductManifest, name: str) -> str:
    return f"file {name} of the {manifest.product} of {ref.path} is {{}} (generation {manifest.generation})"
