"""Routes of Ray's frontend below a session: its document and its static files."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rayhistory.errors import NotFound, RayHistoryError, SessionNotIndexed, UsageError
from rayhistory.server import frontend
from rayhistory.server.http.message_page import error_page, message_page, progress_page
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of
from rayhistory.server.pages import frame_page
from rayhistory.server.routing.session_router import query_suffix


def frontend_routes(frontends: frontend.Frontends) -> list[Route]:
    async def document(request: Request) -> Response:
        """Serve the page of a session once it is indexed: our page with the bar, and Ray's frontend in its iframe."""
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
