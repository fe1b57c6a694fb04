"""Routes below a session: resolve the session, run the handler, cache its response, report its errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import IndexDamaged, RayHistoryError
from rayhistory.server.http.admission import caller_of
from rayhistory.server.http.error_responses import ray_error_response
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.response_cache import (
    LARGE_RESPONSE_ROWS,
    ChunkedJsonResponse,
    UnfinishedResponse,
    cached_response,
    client_has,
    etag_for,
    is_cacheable,
    not_modified_response,
    response_cache_of,
    unfinished_response,
)
from rayhistory.server.resolve import SessionResolver
from rayhistory.server.view import SessionView
from rayhistory.sessions.selection import Selection

log = logging.getLogger(__name__)

SessionHandler = Callable[[Request, SessionView], Awaitable[Response]]
PlainHandler = Callable[[Request], Awaitable[Response]]

_CLIENT_CLOSED_REQUEST = 499


def selection_of(request: HTTPConnection) -> Selection:
    selection: Selection = request.scope["rayhistory.selection"]
    return selection


def resolver_of(request: HTTPConnection) -> SessionResolver:
    resolver: SessionResolver = request.app.state.resolver
    return resolver


async def view_of(request: HTTPConnection, timeout_s: float | None = None) -> SessionView:
    return await resolver_of(request).view(selection_of(request), timeout_s, visitor=caller_of(request))


def end_open_rows_for_browsers(
    request: HTTPConnection, view: SessionView, rows: Iterable[dict[str, Any]], start: str, end: str
) -> None:
    """For browsers only, set the end of rows that have none to the time of the session's last data.

    Ray's pages would otherwise draw such rows until now. Other clients get no end, as from Ray.
    """
    closing = view.index.manifest.closing
    until = view.last_ms if closing and closing.open else selection_of(request).as_of_ms
    if until is not None and is_browser(request):
        for row in rows:
            if row[start] and not row[end]:
                row[end] = until


def view_route(
    path: str,
    handler: SessionHandler,
    *,
    cache: bool = True,
    on_error: Callable[[RayHistoryError], Response] = ray_error_response,
) -> Route:
    """Serve a path from a SessionView. Responses that depend on more than the index must not be cached."""
    respond = _cached(handler) if cache else handler

    async def endpoint(request: Request) -> Response:
        try:
            try:
                return await respond(request, await view_of(request))
            except IndexDamaged as error:
                log.warning("index is damaged, rebuilding it", extra={"path": request.url.path, "reason": str(error)})
                view = await resolver_of(request).view(selection_of(request), rebuild=True, visitor=caller_of(request))
                return await respond(request, view)
        except RayHistoryError as error:
            return on_error(error)

    async def endpoint_while_connected(request: Request) -> Response:
        if selection_of(request).as_of_ms is None:
            return await endpoint(request)
        return await while_connected(request, endpoint(request))

    return Route(path, endpoint_while_connected, methods=["GET"])


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Cancel a response when the client disconnects.

    Responses as of a point in time are expensive, and a moving slider requests many.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    response, disconnect = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait({response, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if response.done():
            return response.result()
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    finally:
        for task in (response, disconnect):
            task.cancel()
        await asyncio.gather(response, disconnect, return_exceptions=True)


def _cached(handler: SessionHandler) -> SessionHandler:
    """Return a handler that caches responses, and runs `handler` once for all requests with the same response."""

    async def respond(request: Request, view: SessionView) -> Response:
        cache = response_cache_of(request)
        etag = etag_for(request, view)
        if client_has(request, etag):
            return not_modified_response(etag)
        async with cache.single_flight(etag):
            cached = cache.get(etag)
            if cached is None:
                response = await handler(request, view)
                if not is_cacheable(response):
                    return response
                rows = response.rows if isinstance(response, ChunkedJsonResponse) else 0
                async with cache.large_response_slot(rows):
                    if rows > LARGE_RESPONSE_ROWS and await request.is_disconnected():  # while waiting for the slot
                        return Response(status_code=_CLIENT_CLOSED_REQUEST)
                    made = await cache.put(etag, response)
                if isinstance(made, UnfinishedResponse):
                    return await unfinished_response(request, made)
                cached = made
        return await cached_response(request, etag, cached)

    return respond


def plain_route(path: str, handler: PlainHandler, methods: tuple[str, ...] = ("GET",)) -> Route:
    """Serve a path below a session with a handler that opens the view itself, or needs none."""
    return Route(path, handler, methods=list(methods))
