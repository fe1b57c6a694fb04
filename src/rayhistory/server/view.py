"""One session as the routes see it: tables, snapshots and logs, whoever asks and however it was addressed."""

import asyncio
from typing import Any

from rayhistory.events.spans import read_spans
from rayhistory.index.query import Filter, OpenIndex, Query, Row
from rayhistory.layout import SessionRef
from rayhistory.server.answers import parsed
from rayhistory.server.logfiles import Logs


class SessionView:
    def __init__(self, ref: SessionRef, state: str, index: OpenIndex, logs: Logs) -> None:
        self.ref = ref
        self.state = state
        self.index = index
        self.logs = logs

    async def rows(
        self,
        table: str,
        *filters: Filter,
        columns: tuple[str, ...] = (),
        sort: tuple[str, ...] = (),
        limit: int | None = None,
    ) -> list[Row]:
        return await self.index.rows(Query(table, columns, filters, sort, limit))

    async def spans(self, *filters: Filter) -> list[Row]:
        """What was profiled in tasks, one row per span, by task and in the order of their ends."""
        rows = await self.rows("profile_events", *filters, sort=("task_id", "attempt"))
        return await asyncio.to_thread(lambda: sorted((span for row in rows for span in read_spans(row)), key=_place))

    async def row(self, table: str, *filters: Filter) -> Row | None:
        found = await self.rows(table, *filters, limit=1)
        return found[0] if found else None

    async def snapshot(self, uri: str) -> dict[str, Any]:
        """The dashboard's last answer to this request, decoded; empty when there is none, or one that is no object.

        The names that KubeRay's collector gives to answers do not tell whether there was a slash at the end.
        """
        path, mark, query = uri.partition("?")
        spelled = tuple(f"{path.rstrip('/')}{slash}{mark}{query}" for slash in ("", "/"))
        found = await self.rows("snapshots", Filter("uri", "in", spelled), sort=("-ns",), limit=1)
        kept: dict[str, Any] = parsed(found[0]["body"], {}) if found else {}
        return kept

    async def head_node(self) -> str | None:
        """The id of the head node."""
        found = await self.rows("nodes", Filter("is_head", "=", True), sort=("start_time_ms",), limit=1)
        return found[0]["node_id"] if found else None

    @property
    def last_ms(self) -> int:
        """The last sign of life."""
        manifest = self.index.manifest
        closing = manifest.closing.ns if manifest.closing else 0
        return max(manifest.last_ns or 0, closing) // 1_000_000


def _place(span: Row) -> tuple[str, int, int, int]:
    """Spans of one task come in several rows when they were sent at several times."""
    return span["task_id"], span["attempt"], span["end_ns"], span["start_ns"]
