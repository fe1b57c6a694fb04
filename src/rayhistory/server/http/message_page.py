"""Message pages: errors, and the progress of indexing."""

from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Scope

from rayhistory import __version__, web
from rayhistory.errors import ProductNotBuilt, RayHistoryError, SessionNotFound, SessionNotIndexed, TimeBeforeStart
from rayhistory.server.http.error_responses import error_headers

_TITLES = {
    400: "Invalid request",
    401: "Sign-in required",
    403: "Access denied",
    404: "Page not found",
    429: "Too many requests",
    503: "Temporarily unavailable",
}
_SECURITY_HEADERS = {
    "Content-Security-Policy": web.CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cache-Control": "no-store",
}


def page_response(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, _SECURITY_HEADERS | (headers or {}), "text/html")


def message_page(error: RayHistoryError, title: str, hint: str | None, link: web.Link | None = None) -> Response:
    text = web.render_message(
        status=error.http_status, title=title, message=str(error), hint=hint, link=link, version=__version__
    )
    return page_response(text, error.http_status, error_headers(error))


def error_page(error: RayHistoryError, scope: Scope | None = None) -> Response:
    """Return a page about an error. If the scope of a request to a session is given, the page links to the session."""
    if isinstance(error, TimeBeforeStart):
        start = web.Link("Show its start", error.start_url)
        return message_page(error, "This time is before the session's start", None, start)
    title = _TITLES.get(error.http_status, "This session cannot be shown")
    if isinstance(error, SessionNotFound):
        title = "Session not found"
    hint = "Select a session from the list of all sessions." if error.http_status in (400, 404) else None
    link = None if scope is None or isinstance(error, SessionNotFound) else _session_link(scope)
    return message_page(error, title, None if link else hint, link)


def _session_link(scope: Scope) -> web.Link | None:
    """Return a link to the session of a request below `/s/…`."""
    session = scope.get("rayhistory.full_path", "").removesuffix(scope["path"]).rstrip("/")
    return web.Link("Back to the session", f"{quote(session, safe='/~@:+')}/") if session.startswith("/s/") else None


def progress_page(session: web.NamedSession, progress: SessionNotIndexed | ProductNotBuilt) -> Response:
    is_product = isinstance(progress, ProductNotBuilt)
    text = web.render_progress(
        session=session,
        title="Preparing this page" if is_product else "Indexing this session",
        detail=str(progress),
        percent=int(progress.progress * 100) if progress.progress else None,
        refresh_seconds=1,
        version=__version__,
    )
    return page_response(text)
