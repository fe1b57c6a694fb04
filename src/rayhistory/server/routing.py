"""How a request below a session's address reaches its handler, and how an error becomes an answer."""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import (
    DamagedIndex,
    FoldFailed,
    LogNotFound,
    NotIndexedYet,
    RayHistoryError,
    SessionNotFound,
    StoreError,
    UsageError,
)
from rayhistory.server.answers import ray_error
from rayhistory.server.resolve import Resolver, Selection
from rayhistory.server.view import SessionView

log = logging.getLogger(__name__)

SessionHandler = Callable[[Request, SessionView], Awaitable[Response]]
PlainHandler = Callable[[Request], Awaitable[Response]]

RETRY = {"Retry-After": "2"}


def selection_of(request: HTTPConnection) -> Selection:
    selection: Selection = request.scope["rayhistory.selection"]
    return selection


def resolver_of(request: HTTPConnection) -> Resolver:
    resolver: Resolver = request.app.state.resolver
    return resolver


async def view_of(request: HTTPConnection, patience: float | None = None) -> SessionView:
    return await resolver_of(request).view(selection_of(request), patience)


def get(path: str, handler: SessionHandler) -> Route:
    """A route of Ray's API that is answered from the session's view."""

    async def endpoint(request: Request) -> Response:
        try:
            try:
                return await handler(request, await view_of(request))
            except DamagedIndex as error:
                log.warning("an index is built again", extra={"path": request.url.path, "reason": str(error)})
                view = await resolver_of(request).view(selection_of(request), rebuild=True)
                return await handler(request, view)
        except RayHistoryError as error:
            return answer_to(error)

    return Route(path, endpoint, methods=["GET"])


def get_plain(path: str, handler: PlainHandler, methods: tuple[str, ...] = ("GET",)) -> Route:
    """A route that needs no more than to know that there is a session."""
    return Route(path, handler, methods=list(methods))


def status_of(error: RayHistoryError) -> int:
    if isinstance(error, SessionNotFound | LogNotFound):
        return 404
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, NotIndexedYet | StoreError):
        return 503
    return 500


def answer_to(error: RayHistoryError) -> Response:
    """An error in the shape that Ray's clients print; what may pass is said to be worth trying again."""
    status = status_of(error)
    message = str(error)
    if isinstance(error, NotIndexedYet):
        message = f"This session is being indexed: {message}. Try again in a moment."
    elif isinstance(error, StoreError):
        message = f"The store cannot be read now: {message}"
    elif isinstance(error, FoldFailed):
        message = f"This session cannot be shown: {message}"
    return ray_error(message, status, RETRY if status == 503 else None)
