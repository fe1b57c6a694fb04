"""The sessions that the visitor of a request may see."""

from starlette.datastructures import QueryParams
from starlette.requests import Request

from rayhistory.server.history_api.session_filters import parse_session_filters
from rayhistory.server.history_api.session_listing import ListingPage, SessionListing
from rayhistory.server.http.admission import admission_of
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.live_sessions import live_of
from rayhistory.sessions.catalog import CatalogEntry


async def load_session_page(request: Request) -> ListingPage:
    """Load the page of sessions that a request selects. Live clusters without a running session come first."""
    listing: SessionListing = request.app.state.session_listing
    entries = await admission_of(request).filter_visible(request, await resolver_of(request).catalog.entries())
    entries = [*await live_of(request).unrecorded(request, entries), *entries]
    return await listing.page(entries, request.query_params, request.app.state.frontends)


async def matching_sessions(request: Request, params: QueryParams) -> list[CatalogEntry]:
    """Return the stored sessions that match the filters in `params`: running sessions first, then the newest."""
    listing: SessionListing = request.app.state.session_listing
    filters = parse_session_filters(params)
    entries = await admission_of(request).filter_visible(request, await resolver_of(request).catalog.entries())
    return listing.matching(entries, filters)
