"""The home page: the list of sessions that the visitor may see."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__, web
from rayhistory.errors import RayHistoryError
from rayhistory.server.history_api.visible_sessions import load_session_page
from rayhistory.server.http.message_page import error_page, page_response


async def home_page(request: Request) -> Response:
    try:
        page = await load_session_page(request)
    except RayHistoryError as error:
        return error_page(error)
    text = web.render_home(
        page.sessions,
        filters=page.filters,
        total=page.total,
        unsearched=page.unsearched,
        unindexed=page.unindexed,
        next_page=page.next.url(web.HOME_PATH) if page.next else None,
        previous_page=page.previous.url(web.HOME_PATH) if page.previous else None,
        dashboards=page.dashboards,
        notice=None,
        store=request.app.state.store_url,
        now_ms=int(time.time() * 1000),
        version=__version__,
    )
    return page_response(text)


ROUTES = [Route("/home", home_page), Route("/select_cluster", home_page)]
