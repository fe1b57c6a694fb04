"""SessionView: tables, dashboard responses and logs of one session, as route handlers see it."""

import asyncio
from typing import Any

from rayhistory.events.profile_spans import read_spans
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.logs.source import LogSource
from rayhistory.server.untrusted_json import decode_json
from rayhistory.sessions import SessionRef


class SessionView:
    def __init__(self, ref: SessionRef, state: str, index: OpenIndex, logs: LogSource) -> None:
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

    async def row(self, table: str, *filters: Filter) -> Row | None:
        rows = await self.rows(table, *filters, limit=1)
        return rows[0] if rows else None

    async def spans(self, *filters: Filter) -> list[Row]:
        """Return the profile spans of tasks, ordered by task, attempt and end."""
        rows = await self.rows("profile_events", *filters, sort=("task_id", "attempt"))
        return await asyncio.to_thread(
            lambda: sorted((span for row in rows for span in read_spans(row)), key=_span_order)
        )

    async def dashboard_response(self, uri: str) -> dict[str, Any]:
        """Return the last stored response for this URI as a dict; empty if none is stored or it is no JSON object.

        A slash at the end is ignored, because KubeRay's collector stores both spellings under one name.
        """
        path, mark, query = uri.partition("?")
        spellings = tuple(f"{path.rstrip('/')}{slash}{mark}{query}" for slash in ("", "/"))
        rows = await self.rows("snapshots", Filter("uri", "in", spellings), sort=("-ns",), limit=1)
        response: dict[str, Any] = decode_json(rows[0]["body"], {}) if rows else {}
        return response

    async def head_node(self) -> str | None:
        """Return the id of the head node; None if no event reported one."""
        rows = await self.rows("nodes", Filter("is_head", "=", True), sort=("start_time_ms",), limit=1)
        return rows[0]["node_id"] if rows else None

    @property
    def last_ms(self) -> int:
        """Time of the last event, or of the session's end if that is later."""
        manifest = self.index.manifest
        closing = manifest.closing.ns if manifest.closing else 0
        return max(manifest.last_ns or 0, closing) // 1_000_000


def _span_order(span: Row) -> tuple[str, int, int, int]:
    """Order spans across rows: a task that reported several times has several."""
    return span["task_id"], span["attempt"], span["end_ns"], span["start_ns"]
