"""The pages `/runs` and `/runs/{key}`. They work without JavaScript."""

import time
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.errors import RayHistoryError
from rayhistory.runs.prices import Prices
from rayhistory.runs.run_groups import RunGroup
from rayhistory.server.http.message_page import error_page, page_response
from rayhistory.server.runs_api.run_listing import GroupPage, run_listing_of
from rayhistory.server.runs_api.run_query import parse_run_filters
from rayhistory.web.format import plural
from rayhistory.web.render_runs import duration_chart, render_run_group, render_runs

PATH = "/runs"
_HOW_TO_LIST = "not indexed, or without a summary. To list them now, run: rayhistory index --missing"


async def runs_page(request: Request) -> Response:
    listing = run_listing_of(request)
    try:
        page = await listing.page(request, parse_run_filters(request.query_params))
    except RayHistoryError as error:
        return error_page(error)
    text = render_runs(
        page.groups,
        filters=page.filters,
        total=page.total,
        notes=_notes(page),
        has_prices=listing.prices != Prices(),
        next_page=page.next.url(PATH) if page.next else None,
        previous_page=page.previous.url(PATH) if page.previous else None,
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return page_response(text)


def _notes(page: GroupPage) -> list[str]:
    """Return notes about data that is missing from the list."""
    missing, rows = page.visible.unsummarized, page.visible.rows
    return [
        *(["Sessions are still being listed: runs of removed sessions may be shown."] if missing is None else []),
        *([f"{plural(missing, 'session')} not listed yet: {_HOW_TO_LIST}"] if missing else []),
        *([f"{plural(rows.unlisted, 'older session')} not listed."] if rows.unlisted else []),
        *(
            [f"{plural(len(rows.damaged), 'part')} of the list cannot be read and will be rebuilt."]
            if rows.damaged
            else []
        ),
    ]


async def run_group_page(request: Request) -> Response:
    try:
        filters = parse_run_filters(request.query_params)
        details = await run_listing_of(request).details(request, request.path_params["key"], filters.since_ms)
    except RayHistoryError as error:
        return error_page(error)
    text = render_run_group(
        details,
        chart=duration_chart(details.runs),
        compare_url=_compare_url(details.group),
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return page_response(text)


def _compare_url(group: RunGroup) -> str | None:
    newest = group.last[0].session
    if group.last_good is None or group.last_good == newest:
        return None
    return f"/compare?{urlencode([('session', group.last_good), ('session', newest)])}"


ROUTES = [Route(PATH, runs_page), Route(f"{PATH}/{{key}}", run_group_page)]
