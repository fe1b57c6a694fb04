"""The gaps page of a session: which data is missing, what that means, and how to avoid it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import __version__, gap_descriptions, web
from rayhistory.errors import RayHistoryError, SessionNotIndexed
from rayhistory.server.history_api.api_types import GapTotal, SessionGap, SessionGaps
from rayhistory.server.history_api.gap_report import read_gaps
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.server.http.message_page import error_page, page_response, progress_page
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of
from rayhistory.server.pages.frame_page import PAGE_TIMEOUT_S
from rayhistory.web import GapGroup, GapLocation

_MAX_PLACES = 100


async def gaps_page(request: Request) -> Response:
    listing: SessionListing = request.app.state.session_listing
    try:
        entry = await resolver_of(request).entry(selection_of(request))
        view = await view_of(request, PAGE_TIMEOUT_S)
        report = await read_gaps(view)
        row = await listing.row(entry)
    except SessionNotIndexed as progress:
        return progress_page(entry.ref, progress)
    except RayHistoryError as error:
        return error_page(error)
    text = web.render_gaps(row, group_gaps(report), complete=report.complete, version=__version__)
    return page_response(text)


def group_gaps(report: SessionGaps) -> list[GapGroup]:
    """Combine gaps with the same code into groups, losses first. A group lists the locations of its first gaps only."""
    by_code: dict[str, list[SessionGap]] = {}
    for gap in report.gaps:
        by_code.setdefault(gap.code, []).append(gap)
    groups = [_group(code, same_code, report.totals[code]) for code, same_code in by_code.items()]
    return sorted(groups, key=lambda group: not group.loss)


def _group(code: str, same_code: list[SessionGap], total: GapTotal) -> GapGroup:
    kind = gap_descriptions.describe(code)
    places = [GapLocation(place=gap.place, detail=gap.detail) for gap in same_code if gap.place or gap.detail]
    return GapGroup(
        code=code,
        summary=kind.summary(total.count),
        meaning=kind.meaning,
        remedy=kind.remedy,
        loss=kind.is_loss,
        places=places[:_MAX_PLACES],
        more_places=max(0, total.gaps - _MAX_PLACES) if places else 0,
    )


ROUTES: list[BaseRoute] = [plain_route("/gaps", gaps_page, ("GET", "HEAD"))]
