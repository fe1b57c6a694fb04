"""The page `/fleet`: figures of all runs that the visitor may see, for operators."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.errors import RayHistoryError
from rayhistory.server.http.message_page import error_page, page_response
from rayhistory.server.runs_api.visible_fleet import load_fleet
from rayhistory.web.render_runs import render_fleet


async def fleet_page(request: Request) -> Response:
    try:
        fleet, filters = await load_fleet(request)
    except RayHistoryError as error:
        return error_page(error)
    return page_response(render_fleet(fleet, filters=filters, version=__version__))


ROUTES = [Route("/fleet", fleet_page)]
