"""SessionView: tables, dashboard responses and logs of one session, as route handlers see it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from rayhistory.errors import ResponseTooLarge
from rayhistory.index.fold.response_files import RESPONSES_TABLE
from rayhistory.index.products.session_products import SessionProducts
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import KEY_COLUMNS, Filter, Query, Row
from rayhistory.logs.source import LogSource
from rayhistory.ray_env import Version, is_before
from rayhistory.server.untrusted_json import MAX_VALUES, decode_json, has_too_many_values, raw_members
from rayhistory.sessions import SessionRef

_MAX_DECODED_BYTES = 8 << 20
"""Maximum size of dashboard responses that are decoded completely."""
_MAX_RESPONSE_BYTES = 64 << 20
"""Maximum size of a dashboard response. The collector stores no larger ones."""


class SessionView:
    def __init__(
        self, ref: SessionRef, state: str, index: OpenIndex, logs: LogSource, products: SessionProducts | None = None
    ) -> None:
        self.ref = ref
        self.state = state
        self.index = index
        self.logs = logs
        self.products = products
        """Products of the session; None as of a point in time, because products are built only for the whole session.
        """

    async def rows(
        self,
        table: str,
        *filters: Filter,
        columns: tuple[str, ...] = (),
        sort: tuple[str, ...] = (),
        limit: int,
    ) -> list[Row]:
        """Return at most `limit` rows. Read longer lists with `batches`."""
        return await self.index.rows(Query(table, columns, filters, sort, limit))

    def batches(
        self, table: str, *filters: Filter, columns: tuple[str, ...] = (), sort: tuple[str, ...] = ()
    ) -> AsyncIterator[list[Row]]:
        """Yield all rows, in batches of bounded size."""
        query = Query(table, columns, filters, sort or KEY_COLUMNS[table])
        return self.index.batches(query.with_order())

    async def row(self, table: str, *filters: Filter) -> Row | None:
        rows = await self.rows(table, *filters, limit=1)
        return rows[0] if rows else None

    async def dashboard_response(self, uri: str) -> dict[str, Any]:
        """Return the last stored response of this URI as a dict; empty if there is none, or if it is not a JSON object.

        For lists, which can be long, use `dashboard_items`.
        """
        body = await self._dashboard_body(uri, _MAX_DECODED_BYTES)
        if body and has_too_many_values(body):
            raise ResponseTooLarge(
                f"the stored dashboard response has more than {MAX_VALUES} values, which is too many to serve: "
                "read it with `rayhistory sql`"
            )
        response: dict[str, Any] = await asyncio.to_thread(decode_json, body, {})
        return response

    async def dashboard_items(self, uri: str, *path: str) -> dict[str, msgspec.Raw]:
        """Return the members of an object inside the last stored response of this URI, still encoded.

        A decoded response needs ten times the memory. Callers decode the members that they need, one by one.
        """
        body = await self._dashboard_body(uri, _MAX_RESPONSE_BYTES)
        return await asyncio.to_thread(raw_members, body or "", *path)

    async def _dashboard_body(self, uri: str, max_bytes: int) -> str | None:
        """Return the text of the last stored response; None if there is none.

        KubeRay's collector uses the same name for a URI with and without a final slash.
        """
        path, mark, query = uri.partition("?")
        spellings = tuple(f"{path.rstrip('/')}{slash}{mark}{query}" for slash in ("", "/"))
        return await self.last_body(Filter("uri", "in", spellings), max_bytes=max_bytes)

    async def last_body(self, *filters: Filter, max_bytes: int = _MAX_DECODED_BYTES) -> str | None:
        """Return the text of the last dashboard response that matches; raise ResponseTooLarge if it is too long."""
        query = Query(RESPONSES_TABLE, ("uri", "body"), filters, ("-ns",), 1)
        size = sum(await self.index.text_sizes(query))
        if size > max_bytes:
            raise ResponseTooLarge(
                f"the stored dashboard response has {size >> 20} MiB, but at most {max_bytes >> 20} MiB are served: "
                "read it with `rayhistory sql`"
            )
        rows = await self.index.rows(query) if size else []
        return rows[0]["body"] if rows else None

    async def head_node(self) -> str | None:
        """Return the id of the head node; None if no event reported one."""
        rows = await self.rows("nodes", Filter("is_head", "=", True), sort=("start_time_ms",), limit=1)
        return rows[0]["node_id"] if rows else None

    def is_before(self, version: Version) -> bool:
        """Return True if the cluster had an older Ray than this. An unknown version counts as the newest."""
        return is_before(self.index.manifest.ray_version, version)

    @property
    def last_ms(self) -> int:
        """Time of the last event, or of the session's end if that is later."""
        manifest = self.index.manifest
        closing = manifest.closing.ns if manifest.closing else 0
        return max(manifest.last_ns or 0, closing) // 1_000_000
