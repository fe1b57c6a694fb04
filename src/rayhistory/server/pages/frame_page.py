"""The page with the dashboard: a bar above Ray's unmodified frontend, for people with a browser."""

import time

from starlette.requests import Request
from starlette.responses import Response

from rayhistory import __version__, web
from rayhistory.server.frontend import VERSION_PARAM, Frontends
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.server.http.message_page import page_response
from rayhistory.server.http.ray_proxy import is_ray_proxy_request
from rayhistory.server.http.view_routes import selection_of
from rayhistory.server.view import SessionView
from rayhistory.sessions.catalog import CatalogEntry

PAGE_TIMEOUT_S = 3.0
"""Time that a page waits for the index, before it shows the progress instead."""
VARY_HEADERS = {"Vary": "Accept, Content-Type, Sec-Fetch-Dest"}
_BARE, _ALWAYS = "bare", "always"
TOP_LEVEL_SCRIPT = "/assets/top-level.js"
NO_PLATFORM_EVENTS_SCRIPT = "/assets/no-platform-events.js"


def wants_frame(request: Request) -> bool:
    """Return True if a person opened this URL in a browser tab; False for programs and for iframes.

    `?bare=1` counts only inside an iframe. If such a link is opened in a new tab, the tab must not look like a live
    dashboard. `?bare=always` counts everywhere. Browsers send Sec-Fetch-Dest only over HTTPS and to localhost. Without
    it, the Accept header decides, and `TOP_LEVEL_SCRIPT` removes `?bare=1` from a tab.
    """
    bare = request.query_params.get(_BARE, "0")
    if selection_of(request).from_cookies or is_ray_proxy_request(request) or bare == _ALWAYS:
        return False
    if destination := request.headers.get("sec-fetch-dest"):
        return destination == "document"
    return _accepts_html(request) and bare in ("", "0")


async def frontend_scripts(request: Request, view: SessionView) -> list[str]:
    """Return the URLs of our scripts that must run before the frontend's own scripts."""
    if not _accepts_html(request) or is_ray_proxy_request(request):
        return []
    is_bare = request.query_params.get(_BARE, "0") not in ("", "0", _ALWAYS)
    only_a_script_knows = is_bare and "sec-fetch-dest" not in request.headers
    has_platform_events = await view.rows("platform_events", columns=("event_id",), limit=1)
    return [
        *([TOP_LEVEL_SCRIPT] if only_a_script_knows else []),
        *([] if has_platform_events else [NO_PLATFORM_EVENTS_SCRIPT]),
    ]


def _accepts_html(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


async def frame_page(request: Request, entry: CatalogEntry, view: SessionView) -> Response:
    listing: SessionListing = request.app.state.session_listing
    frontends: Frontends = request.app.state.frontends
    as_of_ms = selection_of(request).as_of_ms
    text = web.render_frame(
        await listing.row(entry),
        as_of_ms=as_of_ms if as_of_ms is not None and as_of_ms <= view.last_ms else None,
        last_ms=view.last_ms,
        dashboards=frontends.describe_choice(view.index.manifest.ray_version, request.query_params.get(VERSION_PARAM)),
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return page_response(text, headers=VARY_HEADERS)
