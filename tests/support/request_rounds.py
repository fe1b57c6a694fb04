"""A directory store that counts how many of its requests are made in sequence."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import Listing, ObjectInfo

T = TypeVar("T")
_LATENCY_S = 0.02
"""Duration of a request in seconds. It is so long that requests overlap unless one waits for the other."""


class RoundsStore(LocalStore):
    """Every request belongs to the round after those that were complete when it started."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.rounds = 0
        """Number of rounds since the last reset."""
        self.requests: list[tuple[int, str]] = []
        """The round and the key or prefix of each request."""
        self.most_in_flight = 0
        self._in_flight = 0

    def reset(self) -> None:
        self.rounds = self.most_in_flight = 0
        self.requests.clear()

    async def put(self, key: str, data: bytes | Path) -> None:
        await self._request(f"put {key}", lambda: super(RoundsStore, self).put(key, data))

    async def create(self, key: str, data: bytes) -> None:
        await self._request(f"create {key}", lambda: super(RoundsStore, self).create(key, data))

    async def get(self, key: str) -> bytes:
        return await self._request(f"get {key}", lambda: super(RoundsStore, self).get(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._request(f"get {key}", lambda: super(RoundsStore, self).get_range(key, start, end))

    async def head(self, key: str) -> ObjectInfo:
        return await self._request(f"head {key}", lambda: super(RoundsStore, self).head(key))

    async def delete(self, key: str) -> None:
        await self._request(f"delete {key}", lambda: super(RoundsStore, self).delete(key))

    async def list_folder(self, prefix: str) -> Listing:
        return await self._request(f"list folder {prefix}", lambda: super(RoundsStore, self).list_folder(prefix))

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async def found() -> list[ObjectInfo]:
            return [info async for info in super(RoundsStore, self).list_all(prefix, start_after)]

        for info in await self._request(f"list {prefix}", found):
            yield info

    async def _request(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        own_round = self.rounds + 1
        self.requests.append((own_round, what))
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(_LATENCY_S)
            return await work()
        finally:
            self._in_flight -= 1
            self.rounds = max(self.rounds, own_round)
