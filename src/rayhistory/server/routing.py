"""How a request below a session's address reaches its handler, and how an error becomes an answer."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import (
    AccessUnknown,
    DamagedIndex,
    FoldFailed,
    KubernetesError,
    LogNotFound,
    NotAllowed,
    NotIndexedYet,
    NotSignedIn,
    RayHistoryError,
    SessionNotFound,
    StoreError,
    TooManyCalls,
    UsageError,
)
from rayhistory.server.answers import own_error, ray_error
from rayhistory.server.kept import FEW, InPieces, KeptAnswers, answer_from, can_be_kept, is_known, not_changed, tag_of
from rayhistory.server.redaction import is_browser
from rayhistory.server.resolve import Resolver, Selection
from rayhistory.server.view import SessionView

log = logging.getLogger(__name__)

SessionHandler = Callable[[Request, SessionView], Awaitable[Response]]
PlainHandler = Callable[[Request], Awaitable[Response]]

_RETRY = {"Retry-After": "2"}
_NOBODY_THERE = 499


def selection_of(request: HTTPConnection) -> Selection:
    selection: Selection = request.scope["rayhistory.selection"]
    return selection


def resolver_of(request: HTTPConnection) -> Resolver:
    resolver: Resolver = request.app.state.resolver
    return resolver


async def view_of(request: HTTPConnection, patience: float | None = None) -> SessionView:
    return await resolver_of(request).view(selection_of(request), patience)


def closed_for_pages(
    request: HTTPConnection, view: SessionView, things: Iterable[dict[str, Any]], start: str, end: str
) -> None:
    """Ray's pages let what has no end go on until today. For a browser that looks at a moment, or at a session that
    went on unseen, it goes on until then; programs are told that there was no end yet."""
    closing = view.index.manifest.closing
    until = view.last_ms if closing and closing.open else selection_of(request).as_of_ms
    if until is not None and is_browser(request):
        for thing in things:
            if thing[start] and not thing[end]:
                thing[end] = until


def get(
    path: str,
    handler: SessionHandler,
    *,
    keep: bool = True,
    failed: Callable[[RayHistoryError], Response] | None = None,
) -> Route:
    """A route that is answered from the session's view. What depends on more than the index must not be kept."""
    answered = _kept(handler) if keep else handler

    async def endpoint(request: Request) -> Response:
        try:
            try:
                return await answered(request, await view_of(request))
            except DamagedIndex as error:
                log.warning("an index is built again", extra={"path": request.url.path, "reason": str(error)})
                view = await resolver_of(request).view(selection_of(request), rebuild=True)
                return await answered(request, view)
        except RayHistoryError as error:
            return (failed or answer_to)(error)

    return Route(path, endpoint, methods=["GET"])


def _kept(handler: SessionHandler) -> SessionHandler:
    """The same handler, asked once for what many ask."""

    async def answered(request: Request, view: SessionView) -> Response:
        answers: KeptAnswers = request.app.state.answers
        tag = tag_of(request, view)
        if is_known(request, tag):
            return not_changed(tag)
        async with answers.turn(tag):
            kept = answers.get(tag)
            if kept is None:
                answer = await handler(request, view)
                if not can_be_kept(answer):
                    return answer
                rows = answer.rows if isinstance(answer, InPieces) else 0
                async with answers.place(rows):
                    if rows > FEW and await request.is_disconnected():  # while it waited for its turn
                        return Response(status_code=_NOBODY_THERE)
                    kept = await answers.keep(tag, answer)
        return await answer_from(request, tag, kept)

    return answered


def get_plain(path: str, handler: PlainHandler, methods: tuple[str, ...] = ("GET",)) -> Route:
    """A route that needs no more than to know that there is a session."""
    return Route(path, handler, methods=list(methods))


def status_of(error: RayHistoryError) -> int:
    if isinstance(error, SessionNotFound | LogNotFound):
        return 404
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, NotSignedIn):
        return 403 if error.wrong else 401
    if isinstance(error, NotAllowed):
        return 403
    if isinstance(error, TooManyCalls):
        return 429
    if isinstance(error, NotIndexedYet | StoreError | AccessUnknown | KubernetesError):
        return 503
    return 500


def retry(status: int) -> dict[str, str]:
    """The headers of what may pass: it is worth trying again."""
    return _RETRY if status == 503 else {}


def answer_to(error: RayHistoryError) -> Response:
    """An error in the shape that Ray's clients print."""
    status = status_of(error)
    return ray_error(_message(error), status, retry(status))


def own_answer_to(error: RayHistoryError) -> Response:
    """The same in the shape of our own API."""
    status = status_of(error)
    return own_error(_message(error), status, retry(status))


def _message(error: RayHistoryError) -> str:
    message = str(error)
    if isinstance(error, NotIndexedYet):
        return f"This session is being indexed: {message}. Try again in a moment."
    if isinstance(error, StoreError):
        return f"The store cannot be read now: {message}"
    if isinstance(error, FoldFailed):
        return f"This session cannot be shown: {message}"
    return message
