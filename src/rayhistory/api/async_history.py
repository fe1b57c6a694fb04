"""The asynchronous library: sessions of a server or of a store, their rows, logs and metrics."""

import asyncio
from collections.abc import AsyncIterator
from typing import IO, Any
from urllib.parse import quote

import httpx
import msgspec

from rayhistory.api.http_client import HistoryClient, Params, RayResponse
from rayhistory.api.rows import Row, RowList
from rayhistory.api.session_names import find_session, listing_filters, quote_session_path

_PAGE_ROWS = 10_000
_MAX_POINTS = 1_000
"""Maximum number of points per series of a metric. Prometheus' limit is 11,000."""
_MIN_STEP_MS = 1_000


class Page(msgspec.Struct):
    """One page of rows from a paged endpoint."""

    next: str | None
    rows: list[Row] = []
    sessions: list[Row] = []
    runs: list[Row] = []
    total: int = 0


class RowSelection(msgspec.Struct, frozen=True):
    """A selection of rows of a table: columns, filters, sort order and limit, as in the API."""

    table: str
    where: str = ""
    columns: str = ""
    sort: str = ""
    limit: int | None = None

    @property
    def params(self) -> Params:
        given = {"where": self.where, "columns": self.columns, "sort": self.sort}
        return {name: value for name, value in given.items() if value}

    @property
    def is_whole_table(self) -> bool:
        return not self.params and self.limit is None


class AsyncHistory:
    """All sessions of a server or a store that the user may see."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._client = HistoryClient(http, on_wait=_ignore)

    @property
    def url(self) -> str:
        return str(self._http.base_url)

    async def first_sessions(self, limit: int, **filters: str) -> tuple[list[Row], int]:
        """Return at most `limit` sessions that match, newest first, and the number of all that match."""
        return await self._first("/api/history/sessions", limit, filters)

    async def first_runs(self, limit: int, **filters: str) -> tuple[list[Row], int]:
        """Return at most `limit` groups of runs that match, newest first, and the number of all that match."""
        return await self._first("/api/history/runs", limit, filters)

    async def _first(self, path: str, limit: int, filters: Params) -> tuple[list[Row], int]:
        rows: list[Row] = []
        total = 0
        async for page in self._pages(path, filters):
            rows, total = rows + page.sessions + page.runs, page.total
            if len(rows) >= limit:
                break
        return rows[:limit], total

    async def sessions(self, **filters: str) -> RowList:
        """Return the sessions, newest first.

        Filters: q, namespace, cluster, state, failed, owner, since, from_, to, sort.
        """
        return RowList([row async for page in self._pages("/api/history/sessions", filters) for row in page.sessions])

    async def session(self, name: str = "") -> "AsyncSession":
        """Return a session by any of its names, or the newest without a name.

        Raise SessionNotFound if it is unknown.
        """
        path = quote_session_path((await find_session(name, self._matching)).path)
        session = AsyncSession(HistoryClient(self._http, path, _ignore), self.url)
        await session.overview()
        return session

    async def compare(self, *sessions: "AsyncSession") -> Row:
        """Compare up to ten sessions: environment, functions and failures."""
        names = [session.name for session in sessions]
        return await self._client.json("/api/history/compare", dict, {"session": names})

    async def runs(self, **filters: str) -> RowList:
        """Return groups of runs of the same job. Filters: q, namespace, owner, kind, since, failed, regressed, sort."""
        return RowList([row async for page in self._pages("/api/history/runs", filters) for row in page.runs])

    async def _pages(self, path: str, params: Params) -> AsyncIterator[Page]:
        """Yield a page and all following pages. `from_` stands for `from`, which is a keyword of Python."""
        params = {name.rstrip("_"): value for name, value in params.items()}
        while path:
            page = await self._client.json(path, Page, params)
            yield page
            path, params = page.next or "", {}

    async def search(self, text: str, **options: Any) -> RowList:
        """Search the logs of all sessions, newest first. Options are as in the API, such as regex, case and limit."""
        found = await self._client.json("/api/history/search", dict, {"q": text, **_flags(options)})
        return RowList(found["hits"])

    async def _matching(self, name: str) -> list[tuple[str, str]]:
        page = await self._client.json("/api/history/sessions", Page, listing_filters(name))
        return [(row["session"], row["url"]) for row in page.sessions]


class AsyncSession:
    """One session, in its latest state or as of a time."""

    def __init__(self, client: HistoryClient, server: str) -> None:
        self._client = client
        self._server = server.rstrip("/")

    @property
    def name(self) -> str:
        """The path of the session: namespace/cluster/session, and @time if it is as of a time."""
        return self._client.path.removeprefix("/s/").strip("/")

    @property
    def url(self) -> str:
        return self._server + self._client.path

    async def pages(self, selection: RowSelection) -> AsyncIterator[list[Row]]:
        """Yield the rows of the table page by page."""
        remaining, cursor = selection.limit, ""
        while remaining is None or remaining > 0:
            size = _PAGE_ROWS if remaining is None else min(_PAGE_ROWS, remaining)
            page = await self._page(selection, limit=size, cursor=cursor)
            yield page.rows
            if not page.next:
                return
            remaining, cursor = None if remaining is None else remaining - len(page.rows), page.next

    async def count(self, selection: RowSelection) -> int:
        total = (await self._page(selection, limit=1, count=1)).total
        return total if selection.limit is None else min(total, selection.limit)

    async def write_parquet(self, selection: RowSelection, file: IO[bytes]) -> None:
        """Write all selected rows to a file, as Parquet."""
        limit = {} if selection.limit is None else {"limit": selection.limit}
        await self._download(f"{_rows_uri(selection.table)}.parquet", selection.params | limit, file)

    async def write_archive(self, table: str, file: IO[bytes]) -> None:
        """Write a whole table to a file, as a zip archive of Parquet files. Older servers do not support this."""
        await self._download(f"{_rows_uri(table)}.zip", {"superseded": 1}, file)

    async def _download(self, uri: str, params: Params, file: IO[bytes]) -> None:
        async for chunk in self._client.stream(uri, params):
            await asyncio.to_thread(file.write, chunk)

    async def _page(self, selection: RowSelection, **params: Any) -> Page:
        return await self._client.json(_rows_uri(selection.table), Page, selection.params | params)

    async def overview(self) -> Row:
        return await self._client.json("api/history/overview", dict)

    async def version(self) -> Row:
        """Return the version of Ray in the session."""
        return await self._client.json("api/version", dict)

    async def gaps(self) -> Row:
        return await self._client.json("api/history/gaps", dict)

    async def diagnose(self) -> Row:
        return await self._client.json("api/history/diagnosis", dict)

    async def metrics(self, query: str, *, start_ms: int | None, end_ms: int | None, step_ms: int | None) -> RowList:
        """Evaluate a PromQL query over the session or a time range of it. Return one row per series and time."""
        if start_ms is None or end_ms is None:
            overview = await self.overview()
            start_ms = overview["started_ms"] if start_ms is None else start_ms
            end_ms = overview["last_ms"] if end_ms is None else end_ms
        step_ms = step_ms or max(_MIN_STEP_MS, (end_ms - start_ms) // _MAX_POINTS)
        params = {"query": query, "start": start_ms / 1000, "end": end_ms / 1000, "step": step_ms / 1000}
        found = await self._client.json("prometheus/api/v1/query_range", RayResponse, params)
        return RowList([
            {"time_ms": round(at * 1000), "value": float(value), **series["metric"]}
            for series in found.data["result"] for at, value in series["values"]
        ])  # fmt: skip

    async def sql(self, query: str, limit: int | None = None) -> RowList:
        """Run one SELECT on the tables. A server needs --sql for this."""
        body = {"query": query} if limit is None else {"query": query, "limit": limit}
        found = await self._client.post("api/history/sql", body, dict)
        return RowList(found["rows"], found["columns"], complete=found["complete"])

    async def search(self, text: str, **options: Any) -> AsyncIterator[Row]:
        """Yield the lines that contain a text, newest first. Options are as in the API: regex, case, word, node, …"""
        remaining, cursor = options.pop("limit", None), ""
        while remaining is None or remaining > 0:
            params = {"q": text, **_flags(options), "limit": min(remaining or 1000, 1000)}
            found = await self._client.json(
                "api/history/search", dict, {**params, **({"cursor": cursor} if cursor else {})}
            )
            for hit in found["hits"]:
                yield hit
            remaining, cursor = None if remaining is None else remaining - len(found["hits"]), found["next"]
            if not cursor:
                return

    async def log_files(self, node: str, glob: str) -> list[str]:
        found = await self._client.json("api/v0/logs", RayResponse, {"node_id": node, "glob": glob})
        return sorted(name for names in found.data["result"].values() for name in names if not name.endswith("/"))

    async def read_log(self, **params: Any) -> AsyncIterator[bytes]:
        """Yield the bytes of a log. Parameters are the same as in Ray's log API."""
        given = {name: value for name, value in params.items() if value is not None}
        async for chunk in self._client.stream("api/v0/logs/file", given):
            yield chunk


def _rows_uri(table: str) -> str:
    return f"api/history/rows/{quote(table, safe='')}"


def _flags(options: dict[str, Any]) -> Params:
    """Convert options to parameters of the API: booleans become 0 or 1."""
    named = {name.rstrip("_"): value for name, value in options.items() if value is not None}  # from_ is a keyword
    return {name: int(value) if isinstance(value, bool) else value for name, value in named.items()}


def _ignore(_: str) -> None:
    """Ignore a progress message, because the library prints nothing while a session is being indexed."""
