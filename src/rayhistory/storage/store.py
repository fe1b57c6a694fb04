"""The Store protocol. Backends are found by entry point, so that other packages can add backends.

Every method raises a subclass of `StoreError` on failure: an outage is never an empty result. Methods retry for some
seconds and limit concurrent requests. Callers that can wait longer retry themselves. Keys are separated by `/` and have
no leading slash. `rayhistory.storage.contract_tests` is a test suite for all of this.
"""

from collections.abc import AsyncIterator
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Protocol

import msgspec

from rayhistory.errors import InvalidSetting
from rayhistory.settings import Settings

PART_BYTES = 5 * 2**20
"""The minimum part size of S3. Larger objects are uploaded in parts, with two parts in memory."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """Metadata of one object."""

    key: str
    size: int
    modified: float
    """Last modification in seconds since 1970, by the store's clock."""
    tag: str = ""
    """The store's ETag, or empty. Most stores use the MD5 of an object that was written in one request."""


def normalize_etag(etag: str | None) -> str:
    """Return an ETag without quotes and in lower case, as stores write it in different ways."""
    return (etag or "").strip('"').lower()


class Listing(msgspec.Struct, frozen=True):
    """One level below a prefix: folder names and objects."""

    folders: list[str]
    objects: list[ObjectInfo]


class Store(Protocol):
    """An object store. Implementations must pass `rayhistory.storage.contract_tests.StoreContract`."""

    @property
    def url(self) -> str:
        """The address of the store, for logs and error messages."""

    async def put(self, key: str, data: bytes | Path) -> None:
        """Write or overwrite an object from memory or from a file of any size, which is streamed.

        When this returns, the object is durable. When it raises, the previous object is unchanged.
        """

    async def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist. Raise ObjectExists otherwise.

        Exactly one of several concurrent calls succeeds, even if the store's response is lost.
        """

    async def get(self, key: str) -> bytes:
        """Return the whole object; raise ObjectNotFound if there is none."""

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes [start, end), or fewer if the object is shorter."""

    async def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata; raise ObjectNotFound if there is none."""

    async def delete(self, key: str) -> None:
        """Remove an object. A missing object is not an error."""

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield all objects below a prefix of whole path components, sorted by key, without folder markers.

        SeaweedFS sorts differently. So another order must not cause a loss of data.
        """

    async def list_folder(self, prefix: str) -> Listing:
        """Return the folders and objects directly below a prefix."""

    async def close(self) -> None:
        """Release connections and threads."""


@cache
def _entry_points() -> EntryPoints:
    """Find the backends, once, because this reads a file of every installed package."""
    return entry_points(group="rayhistory.storage")


def backends() -> list[str]:
    return sorted(_entry_points().names)


def open_store(settings: Settings, *, writable: bool = False) -> Store:
    """Open the configured store. Invalid settings raise an error here, not at the first request."""
    name = settings.storage_backend
    for point in _entry_points():
        if point.name == name:
            store: Store = point.load()(settings, writable=writable)
            return store
    raise InvalidSetting(f"unknown storage backend {name!r}: use one of {', '.join(backends())} (STORAGE_BACKEND)")
