"""A directory store that counts listings."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import Listing, ObjectInfo


class CountingStore(LocalStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.listings: Counter[str] = Counter()
        """The number of listings of each prefix."""

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.listings[prefix] += 1
        return super().list_all(prefix, start_after)

    async def list_folder(self, prefix: str) -> Listing:
        self.listings[prefix] += 1
        return await super().list_folder(prefix)
