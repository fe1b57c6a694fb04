"""Routes of Ray's frontend below a session: its document and its static files."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rayhistory import web
from rayhistory.errors import NotFound, RayHistoryError, SessionNotIndexed, UsageError
from rayhistory.server import frontend
from rayhistory.server.http.message_page import error_page, message_page, progress_page
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of
from rayhistory.server.pages import frame_page
from rayhistory.server.routing.session_router import query_suffix
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.web.format import format_iso

_MAX_BEFORE_START_MS = 24 * 3600 * 1000
"""Tolerance, because the start may come from a name in an unknown time zone."""


def frontend_routes(frontends: frontend.Frontends) -> list[Route]:
    async def document(request: Request) -> Response:
        """Serve the page of a session once it is indexed: our page with the bar, and Ray's frontend in its frame."""
        try:
            entry = await resolver_of(request).entry(selection_of(request))
            requested = request.query_params.get(frontend.VERSION_PARAM)
            try:
                chosen = frontends.choose(None, requested)
            except UsageError as error:
                return message_page(error, "This dashboard is not installed", frontend.ADD_VERSION_HINT)
            if chosen is None:
                missing = NotFound("The session is stored, but no Ray Dashboard frontend is installed.")
                return message_page(missing, frontend.NOT_INSTALLED, frontend.INSTALL_HINT)
            as_of_ms = selection_of(request).as_of_ms
            canonical = entry.ref.url if as_of_ms is None else f"{entry.ref.url[:-1]}@{as_of_ms}/"
            if not selection_of(request).from_cookies and request.scope["rayhistory.full_path"] != canonical:
                return RedirectResponse(canonical + query_suffix(request.scope), 307)
            if (start_ms := await _start_after(request, entry, as_of_ms)) is not None:
                return _before_start_page(entry, start_ms)
            view = await view_of(request, frame_page.PAGE_TIMEOUT_S)
            if frame_page.wants_frame(request):
                return await frame_page.frame_page(request, entry, view)
            chosen = frontends.choose(view.index.manifest.ray_version, requested) or chosen
            scripts = await frame_page.frontend_scripts(request, view)
        except SessionNotIndexed as progress:
            return progress_page(entry.ref, progress)
        except RayHistoryError as error:
            return error_page(error)
        return frontend.index_page(chosen, frame_page.VARY_HEADERS, scripts)

    async def file(request: Request) -> Response:
        return frontends.file_response(request.scope["path"].lstrip("/"))

    return [
        plain_route("/", document, ("GET", "HEAD")),
        plain_route("/favicon.ico", file, ("GET", "HEAD")),
        plain_route("/static/{path:path}", file, ("GET", "HEAD")),
    ]


async def _start_after(request: Request, entry: CatalogEntry, as_of_ms: int | None) -> int | None:
    """Return the start of the session if the requested time is before it.

    Clocks differ, so a time shortly before the start is accepted.
    """
    start = await resolver_of(request).catalog.start(entry) if as_of_ms is not None else None
    started_ms = start.started_ms if start else entry.started_ms
    if as_of_ms is None or started_ms is None or as_of_ms >= started_ms - _MAX_BEFORE_START_MS:
        return None
    return started_ms


def _before_start_page(entry: CatalogEntry, start_ms: int) -> Response:
    error = NotFound(f"The session started at {format_iso(start_ms)}; there is no data before that.")
    link = web.Link("Show its start", f"{entry.ref.url[:-1]}@{start_ms}/")
    return message_page(error, "This time is before the session's start", None, link)
