"""Responses of a search: one page of hits as JSON, or a stream of hits as NDJSON."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rayhistory.errors import RayHistoryError
from rayhistory.search.env_var_mask import masked_line
from rayhistory.server.history_api.api_types import LogHit, LogHits, SearchEnd, SearchProgress
from rayhistory.server.http.error_responses import error_body
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import while_connected

NDJSON = "application/x-ndjson"
TIME_BUDGET_S = 20.0
"""Time after which a page ends with the hits so far, and a cursor. A stream continues while the client reads."""


class HitSource(Protocol):
    """A search that runs while its hits are read."""

    def hits(self) -> AsyncIterator[list[LogHit]]:
        """Yield hits in order. An empty list reports progress."""

    def progress(self) -> SearchProgress: ...

    def end(self) -> SearchEnd: ...


def wants_stream(request: Request) -> bool:
    return NDJSON in request.headers.get("accept", "")


class MaskedHits:
    """A search whose hits have no values of environment variables, for browsers."""

    def __init__(self, source: HitSource) -> None:
        self._source = source
        self.progress = source.progress
        self.end = source.end

    async def hits(self) -> AsyncIterator[list[LogHit]]:
        async for hits in self._source.hits():
            for hit in hits:
                hit.text, hit.matches = masked_line(hit.text, hit.matches)
                hit.before, hit.after = ([masked_line(line)[0] for line in lines] for lines in (hit.before, hit.after))
            yield hits


async def hit_response(request: Request, source: HitSource) -> Response:
    source = MaskedHits(source) if is_browser(request) else source
    if wants_stream(request):
        return StreamingResponse(_stream(source), headers={"Cache-Control": "no-store"}, media_type=NDJSON)

    async def respond() -> Response:
        return json_response(await hit_page(source))

    return await while_connected(request, respond())


async def hit_page(source: HitSource) -> LogHits:
    """Run a search until it ends or reaches a limit, and return its hits as one page."""
    hits = [hit async for some in source.hits() for hit in some]
    end = source.end()
    return LogHits(hits, end.next, end.complete, end.scanned_bytes, end.total, end.counts)


async def _stream(source: HitSource) -> AsyncIterator[bytes]:
    """Yield one JSON object per line: hits, progress, and finally a summary or the error that ended the search."""
    try:
        async for hits in source.hits():
            lines = [*map(msgspec.json.encode, hits), msgspec.json.encode({"progress": source.progress()})]
            yield b"\n".join(lines) + b"\n"
    except RayHistoryError as error:
        yield msgspec.json.encode({"error": error_body(error)}) + b"\n"
    else:
        yield msgspec.json.encode(source.end()) + b"\n"
