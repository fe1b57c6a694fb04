"""The search pages of one session and of all sessions. They work without JavaScript."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rayhistory import __version__, web
from rayhistory.errors import AccessError, RayHistoryError, SessionNotIndexed, UsageError
from rayhistory.search.search_query import PARAMETERS, parse_search
from rayhistory.server.history_api.api_types import HitCounts, LogHits
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.server.http.error_responses import error_headers
from rayhistory.server.http.message_page import error_page, page_response, progress_page
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of, while_connected
from rayhistory.server.pages.frame_page import PAGE_TIMEOUT_S
from rayhistory.server.search_api.hit_response import TIME_BUDGET_S, MaskedHits, hit_page
from rayhistory.server.search_api.start_search import (
    SESSION_FILTERS,
    as_of_selection,
    start_session_search,
    start_sessions_search,
)
from rayhistory.web import HistogramBar, SearchForm, SessionRow
from rayhistory.web.format import format_utc

_SHOWN = ("q", "regex", "case", "word", "file", "node", "order", "since", "cursor", "counts")
_SESSION_SHOWN = ("stream", "job", "task", "actor", "from", "to")
_DRAWING_WIDTH, _DRAWING_HEIGHT = 1200, 60


async def session_search_page(request: Request) -> Response:
    return await while_connected(request, _session_search_page(request))


async def _session_search_page(request: Request) -> Response:
    listing: SessionListing = request.app.state.session_listing
    try:
        entry = await resolver_of(request).entry(selection_of(request))
        view = await view_of(request, PAGE_TIMEOUT_S)
        row = await listing.row(entry)
    except SessionNotIndexed as progress:
        return progress_page(entry.ref, progress)
    except RayHistoryError as error:
        return error_page(error)

    async def search() -> LogHits:
        query = as_of_selection(request, parse_search(_given(request)))
        return await hit_page(MaskedHits(await start_session_search(request, view, query, TIME_BUDGET_S)))

    return await _render(request, row, search, f"{entry.ref.url}api/history/search")


async def all_sessions_search_page(request: Request) -> Response:
    async def search() -> LogHits:
        return await hit_page(MaskedHits(await start_sessions_search(request, _given(request), TIME_BUDGET_S)))

    return await while_connected(request, _render(request, None, search, f"{HISTORY_API}search"))


async def _render(
    request: Request, session: SessionRow | None, search: Callable[[], Awaitable[LogHits]], api_path: str
) -> Response:
    given, result, problem = _given(request), None, None
    if given.get("q"):
        try:
            result = await search()
        except UsageError as error:
            problem = error
        except (AccessError, RayHistoryError) as error:
            return error_page(error)
    next_page = f"?{urlencode({**given, 'cursor': result.next})}" if result and result.next else None
    can_count = result and session and not given.get("cursor") and not given.get("counts") and not result.complete
    text = web.render_search(
        session, _form(given), result=result, error=str(problem) if problem else None, api_path=api_path,
        search_params=urlencode({"search" if session else "search_all": urlencode(_without_place(given))}),
        view_json=f"{api_path}?{urlencode(given)}" if result else None, next_page=next_page, version=__version__,
        count_page=f"?{urlencode({**given, 'counts': '1'})}" if can_count else None,
        bars=_bars(given, result.counts) if result and result.counts else (),
    )  # fmt: skip
    return page_response(text, 400 if problem else 200, error_headers(problem) if problem else None)


def _without_place(given: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in ("cursor", "counts")}


def _bars(given: dict[str, str], counts: HitCounts) -> list[HistogramBar]:
    step, buckets = counts.histogram.step_ms, counts.histogram.buckets
    if not buckets:
        return []
    first, most = buckets[0][0], max(hits for _, hits in buckets)
    width = _DRAWING_WIDTH / ((buckets[-1][0] - first) // step + 1)
    return [
        HistogramBar(
            x=(start - first) / step * width, width=max(1, width - 1), height=max(2, hits / most * _DRAWING_HEIGHT),
            label=f"{format_utc(start)} UTC: {hits:,}",
            url=f"?{urlencode({**given, 'from': start, 'to': start + step})}",
        )
        for start, hits in buckets
    ]  # fmt: skip


def _given(request: Request) -> dict[str, str]:
    """Return the parameters of the search, without the empty fields that a form sends."""
    names = {*PARAMETERS, *SESSION_FILTERS}
    return {name: value for name, value in request.query_params.items() if value and name in names}


def _form(given: dict[str, str]) -> SearchForm:
    return SearchForm(
        q=given.get("q", ""), regex=given.get("regex") == "1", case=given.get("case") == "1",
        word=given.get("word") == "1", file=given.get("file", ""), node=given.get("node", ""),
        since=given.get("since", ""), order=given.get("order", "newest"), stream=given.get("stream", ""),
        job=given.get("job", ""), task=given.get("task", ""), actor=given.get("actor", ""),
        start=given.get("from", ""), end=given.get("to", ""),
        hidden=[(name, value) for name, value in given.items() if name not in (*_SHOWN, *_SESSION_SHOWN)],
    )  # fmt: skip


SESSION_ROUTES: list[BaseRoute] = [plain_route("/search", session_search_page, ("GET", "HEAD"))]
ROUTES = [Route("/search", all_sessions_search_page)]
