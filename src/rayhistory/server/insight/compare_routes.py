"""`/compare`: up to ten sessions side by side, as a page and as JSON."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.errors import AccessError, RayHistoryError
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.insight.compared_sessions import compare_requested, session_names
from rayhistory.server.pages.message_page import error_page, page_response
from rayhistory.web.run_pages import render_compare


async def compare_json(request: Request) -> Response:
    try:
        return json_response(await compare_requested(request))
    except (AccessError, RayHistoryError) as error:
        return api_error_response(error)


async def compare_page(request: Request) -> Response:
    try:
        comparison = await compare_requested(request)
    except (AccessError, RayHistoryError) as error:
        return error_page(error)
    show_all = request.query_params.get("all") == "1"
    sessions = [("session", name) for name in session_names(request)]
    toggled = urlencode(sessions if show_all else [*sessions, ("all", "1")])
    text = render_compare(
        comparison, show_all=show_all, all_url=f"/compare?{toggled}",
        json_url=f"/compare.json?{urlencode(sessions)}", version=__version__,
    )  # fmt: skip
    return page_response(text)


ROUTES = [
    Route(f"{HISTORY_API}compare", compare_json),
    Route("/compare.json", compare_json),
    Route("/compare", compare_page),
]
