"""The page around a session's dashboard: a bar above Ray's untouched frontend, for people who came with a browser.

And the page of what is missing from a session, which the bar leads to.
"""

import time
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import __version__, web
from rayhistory.errors import NotIndexedYet, RayHistoryError
from rayhistory.index.query import Row
from rayhistory.server.catalogue import Entry
from rayhistory.server.frontend import PARAMETER, Frontends
from rayhistory.server.home import Home
from rayhistory.server.pages import error_page, page_answer, progress_page
from rayhistory.server.routes.cluster import gaps as gaps_json
from rayhistory.server.routes.cluster import lost_nothing
from rayhistory.server.routing import get, get_plain, own_answer_to, resolver_of, selection_of
from rayhistory.server.throughray import through_ray
from rayhistory.server.view import SessionView
from rayhistory.web import Gap

PAGE_PATIENCE = 3.0
"""How long a page waits for a fold before it shows the progress instead."""
VARY = {"Vary": "Accept, Content-Type, Sec-Fetch-Dest"}
_BARE = "bare"
_MOST_SOURCES = 100


def is_wanted(request: Request) -> bool:
    """Whether a person opened this address itself: not a program, not a page with a frame of its own.

    Browsers say where an answer goes over HTTPS and on their own machine; elsewhere, only what they can read.
    """
    if selection_of(request).by_cookie or through_ray(request) or request.query_params.get(_BARE, "0") not in ("", "0"):
        return False
    destination = request.headers.get("sec-fetch-dest")
    return destination == "document" if destination else "text/html" in request.headers.get("accept", "")


async def page(request: Request, entry: Entry, view: SessionView) -> Response:
    home: Home = request.app.state.home
    frontends: Frontends = request.app.state.frontends
    moment_ms = selection_of(request).as_of_ms
    text = web.render_frame(
        await home.row(entry),
        moment_ms=moment_ms if moment_ms is not None and moment_ms <= view.last_ms else None,
        last_ms=view.last_ms,
        dashboards=frontends.choice(view.index.manifest.ray_version, request.query_params.get(PARAMETER)),
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return page_answer(text, headers=VARY)


async def gaps_page(request: Request) -> Response:
    home: Home = request.app.state.home
    try:
        entry = await resolver_of(request).entry(selection_of(request))
        view = await resolver_of(request).view(selection_of(request), PAGE_PATIENCE)
        rows = await view.rows("gaps", sort=("kind", "detail", "source"))
        row = await home.row(entry)
    except NotIndexedYet as progress:
        return progress_page(entry.ref, progress)
    except RayHistoryError as error:
        return error_page(error)
    text = web.render_gaps(row, _together(rows), complete=lost_nothing(rows), version=__version__)
    return page_answer(text)


def _together(rows: Iterable[Row]) -> list[Gap]:
    """What is said of many objects alike is one line; of where, the first of them are enough for a person."""
    found: dict[tuple[str, str], Gap] = {}
    for row in rows:
        known = found.get((row["kind"], row["detail"] or ""))
        sources = known.sources if known else []
        if row["source"] and len(sources) < _MOST_SOURCES:
            sources = [*sources, row["source"]]
        count = (known.count if known else 0) + (row["count"] or 0)
        found[row["kind"], row["detail"] or ""] = Gap(
            kind=row["kind"], detail=row["detail"] or "", count=count, sources=sources
        )
    return list(found.values())


ROUTES: list[BaseRoute] = [
    get_plain("/gaps", gaps_page, ("GET", "HEAD")),
    get("/gaps.json", gaps_json, failed=own_answer_to),
]
