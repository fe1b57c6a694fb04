"""The diagnosis page of a session: why it failed, why it was slow, with evidence."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import __version__, web
from rayhistory.errors import ProductNotBuilt, RayHistoryError, SessionNotIndexed
from rayhistory.server.history_api.diagnosis_report import read_diagnosis
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.server.http.message_page import error_page, page_response, progress_page
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of
from rayhistory.server.pages.frame_page import PAGE_TIMEOUT_S


async def diagnosis_page(request: Request) -> Response:
    listing: SessionListing = request.app.state.session_listing
    try:
        entry = await resolver_of(request).entry(selection_of(request))
        view = await view_of(request, PAGE_TIMEOUT_S)
        row = await listing.row(entry)
        found = await read_diagnosis(request, view, PAGE_TIMEOUT_S)
    except (SessionNotIndexed, ProductNotBuilt) as progress:
        return progress_page(entry.ref, progress)
    except RayHistoryError as error:
        return error_page(error)
    return page_response(web.render_diagnosis(row, found, as_of_ms=selection_of(request).as_of_ms, version=__version__))


ROUTES: list[BaseRoute] = [plain_route("/diagnosis", diagnosis_page, ("GET", "HEAD"))]
"""Routes below the path of a session."""
