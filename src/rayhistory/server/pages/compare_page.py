"""The page `/compare`: up to ten sessions side by side."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.errors import AccessError, RayHistoryError, UsageError
from rayhistory.runs.comparison import MAX_SESSIONS
from rayhistory.server.http.message_page import error_page, message_page, page_response
from rayhistory.server.runs_api.compared_sessions import compare_requested, session_names
from rayhistory.web.format import plural
from rayhistory.web.render_runs import render_compare

_HINT = "Tick them in the list of sessions, then click Compare selected."


async def compare_page(request: Request) -> Response:
    if not 2 <= len(session_names(request)) <= MAX_SESSIONS:
        selected = plural(len(session_names(request)), "session")
        error = UsageError(f"{selected} selected, but 2 to {MAX_SESSIONS} can be compared.")
        return message_page(error, "Select sessions to compare", _HINT)
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


ROUTES = [Route("/compare", compare_page)]
