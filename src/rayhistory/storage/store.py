"""What a store can do. Backends are found by entry point, so that others can add theirs.

Every method raises one of the errors below `StoreError`: an outage is never an empty answer. Methods try again by
themselves for some seconds, and bound how much is under way at once; who can wait longer calls again.
Keys are `/`-separated, without a leading slash. `rayhistory.storage.contract` says all this as tests.
"""

from collections.abc import AsyncIterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import msgspec

from rayhistory.errors import Misconfigured
from rayhistory.settings import Settings


class ObjectInfo(msgspec.Struct, frozen=True):
    key: str
    size: int
    modified: float
    """Seconds since the epoch, by the store's clock."""
    tag: str = ""
    """What the store calls these bytes, if anything: most stores the MD5 of an object that was written in one piece."""


class Listing(msgspec.Struct, frozen=True):
    """One level of a prefix: the next path components, and the objects right below it."""

    folders: list[str]
    objects: list[ObjectInfo]


class Store(Protocol):
    @property
    def url(self) -> str:
        """Where this is, for people."""

    async def put(self, key: str, data: bytes | Path) -> None:
        """Writes an object, over whatever was there, from memory or from a file of any size, of which little is held in
        memory. When this returns, the object is durable; when it raises, what was there before still is."""

    async def create(self, key: str, data: bytes) -> None:
        """Writes an object that must not exist yet; raises ObjectExists otherwise. Of many that try, one succeeds, and
        knows that it has, even if the store's answer got lost."""

    async def get(self, key: str) -> bytes: ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end); fewer when the object ends before."""

    async def head(self, key: str) -> ObjectInfo: ...

    async def delete(self, key: str) -> None:
        """Removes an object; one that is not there is no error."""

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """All objects below a prefix (a whole path component), in the order of their keys, without the empty objects
        that mark folders. SeaweedFS has an order of its own, so do not rely on it where a wrong one would lose data."""

    async def list_folder(self, prefix: str) -> Listing: ...

    async def close(self) -> None: ...


def backends() -> list[str]:
    return sorted(point.name for point in entry_points(group="rayhistory.storage"))


def open_store(settings: Settings, *, writable: bool = False) -> Store:
    """The store that the settings name. A wrong setting is found here, not at the first request."""
    name = settings.storage_backend
    for point in entry_points(group="rayhistory.storage"):
        if point.name == name:
            store: Store = point.load()(settings, writable=writable)
            return store
    raise Misconfigured(f"unknown storage backend {name!r}: installed are {', '.join(backends())} (STORAGE_BACKEND)")
