"""The newest rows of a table, for lists that Ray also limits: event logs and platform events."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from rayhistory.index.query.query import Query, Row
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS
from rayhistory.server.view import SessionView

K = TypeVar("K")

MAX_ROWS = 10_000
"""Maximum number of rows: Ray's dashboard keeps the same number of events per job."""
_MAX_BYTES = 16 << 20


class NewestRows(Generic[K]):
    """Rows of a query that sorts by time, newest first.

    `shape` returns the listed value of a row, and a short key to group or sort by.
    """

    def __init__(self, view: SessionView, query: Query, shape: Callable[[Row], tuple[K, Any]]) -> None:
        self._view = view
        self._query = msgspec.structs.replace(query, limit=MAX_ROWS)
        self._shape = shape
        self.notes = b""
        """After reading: members of a JSON object with the number of rows that are not listed, if any."""

    async def max_rows(self) -> int:
        return await self._view.index.max_rows(self._query, LARGE_RESPONSE_ROWS - 1)

    async def read(self) -> list[tuple[K, bytes]]:
        """Return the key and the JSON of each row, up to a total size."""
        found: list[tuple[K, bytes]] = []
        size = 0
        async for rows in self._view.index.batches(self._query):
            encoded = await asyncio.to_thread(self._encode, rows)
            found += encoded
            size += sum(len(text) for _, text in encoded)
            if size >= _MAX_BYTES:
                break
        total = await self._view.index.count(Query(self._query.table, filters=self._query.filters))
        if total > len(found):
            warning = (
                f"Only the {len(found):,} newest of {total:,} events are listed. "
                f"api/history/rows/{self._query.table} has all of them, page by page."
            )
            self.notes = b"," + msgspec.json.encode({"total": total, "warnings": [warning]})[1:-1]
        return found

    def _encode(self, rows: list[Row]) -> list[tuple[K, bytes]]:
        return [(key, msgspec.json.encode(value)) for key, value in map(self._shape, rows)]
