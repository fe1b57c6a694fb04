"""The interface of a product, and the inputs of its build.

A product is named by a dotted path such as "rayhistory.diagnosis.diagnosis_product:PRODUCT", so that this package need
not import it.
"""

import dataclasses
import importlib
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rayhistory.index.manifest import Manifest
from rayhistory.index.products.product_manifest import ProductManifest
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.settings import Settings
from rayhistory.storage import Store

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class BuiltProduct:
    """The result of a build."""

    files: dict[str, Path] = dataclasses.field(default_factory=dict)
    """New files below the scratch directory, by name. A name is one safe path component."""
    preview: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Small values for lists of sessions, at most 16 KiB as JSON."""
    reused: tuple[str, ...] = ()
    """Names of files of the previous build that are still valid. They are not uploaded again."""
    announcements: dict[str, bytes] = dataclasses.field(default_factory=dict)
    """Small objects by key, written when the build is visible, to announce it to other components."""


class PreviousProduct(Protocol):
    """The last build of the product, by the same version of its code."""

    @property
    def manifest(self) -> ProductManifest: ...

    def fetch(self, name: str) -> Path:
        """Return a local copy of a file.

        Raise IndexDamaged if it is damaged; the product is then built from scratch.
        """


@dataclasses.dataclass(frozen=True)
class ProductContext:
    """Inputs of a build. A build may write only to the scratch directory."""

    ref: SessionRef
    settings: Settings
    store: Store
    indexes: Store
    """The store of tables and products. It differs from `store` if that is read-only."""
    layout: Layout
    manifest: Manifest
    """The manifest of the tables."""
    index: OpenIndex
    """The tables, as local copies."""
    scratch: Path
    """An empty directory, removed after the build."""
    previous: PreviousProduct | None
    report: Callable[[float, str], None]
    """Report the progress between 0 and 1, and the current step."""
    product_file: Callable[[ProductManifest, str], Awaitable[Path]]
    """Fetch a file of another product of the session; raise IndexDamaged if it is damaged."""
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Wait for a coroutine of `index` or `store`. A build is synchronous, but they are not."""

    @property
    def closing(self) -> Closing | None:
        return self.manifest.closing


class Product(Protocol):
    """Data that is derived from a session and stored beside its tables."""

    @property
    def name(self) -> str:
        """Name of the product: one word, such as "diagnosis". It becomes part of keys."""

    @property
    def version(self) -> int:
        """Incremented when rules or format change, so that older builds are replaced."""

    def build(self, context: ProductContext) -> BuiltProduct:
        """Build the product. Called in a separate process."""


def load_product(path: str) -> Product:
    """Import a product by its dotted path."""
    module, _, attribute = path.partition(":")
    product: Product = getattr(importlib.import_module(module), attribute)
    return product
