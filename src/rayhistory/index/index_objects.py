"""The objects that a manifest of tables or of a product lists, and how to check them."""

import hashlib
from pathlib import Path

import msgspec

from rayhistory.index.manifest import Manifest
from rayhistory.index.products.product_manifest import ProductManifest
from rayhistory.sessions import Layout, SessionRef


class PromisedObject(msgspec.Struct, frozen=True):
    size: int
    sha256: str = ""
    """Checksum in the manifest; empty if the manifest has none."""

    def has_content(self, path: Path) -> bool:
        """Return whether a local copy has the checksum in the manifest."""
        return not self.sha256 or file_sha256(path) == self.sha256


def file_sha256(path: Path) -> str:
    """Return the checksum of a file, as in manifests."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table_objects(layout: Layout, ref: SessionRef, manifest: Manifest) -> dict[str, PromisedObject]:
    """Return all objects of one generation of the tables, by key."""
    return {
        layout.index_file_key(ref, file.folder, table, file.number): PromisedObject(file.size, file.digest)
        for table, file in manifest.all_files()
    }


def product_objects(layout: Layout, ref: SessionRef, manifest: ProductManifest) -> dict[str, PromisedObject]:
    """Return all objects of one build of a product, by key."""
    return {
        layout.product_file_key(ref, manifest.product, file.build, name): PromisedObject(file.size, file.sha256)
        for name, file in manifest.files.items()
    }
