"""`/fleet`: figures of all runs that the visitor may see, for operators."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory import __version__
from rayhistory.errors import RayHistoryError
from rayhistory.runs.fleet import MAX_DAYS, Fleet, FleetFigures, fleet_of
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.insight.csv_rows import csv_response
from rayhistory.server.insight.run_listing import run_listing_of
from rayhistory.server.insight.run_query import RunFilters, parse_run_filters
from rayhistory.server.pages.message_page import error_page, page_response
from rayhistory.web.run_pages import render_fleet

_DEFAULT_DAYS = 30
_DAY_MS = 86_400_000


async def _load(request: Request) -> tuple[Fleet, RunFilters]:
    filters, listing = parse_run_filters(request.query_params), run_listing_of(request)
    visible = await listing.visible(request)
    chosen = [each for each in visible.summaries if filters.namespace in (None, each.namespace)]
    days = min(-(-filters.since_ms // _DAY_MS), MAX_DAYS) if filters.since_ms else _DEFAULT_DAYS
    fleet = await asyncio.to_thread(fleet_of, chosen, int(time.time() * 1000), days, listing.prices)
    return fleet, RunFilters(namespace=filters.namespace, since=filters.since, namespaces=visible.namespaces)


async def fleet_json(request: Request) -> Response:
    try:
        return json_response((await _load(request))[0])
    except RayHistoryError as error:
        return api_error_response(error)


async def fleet_csv(request: Request) -> Response:
    try:
        fleet, _ = await _load(request)
    except RayHistoryError as error:
        return api_error_response(error)
    columns = FleetFigures.__struct_fields__
    return csv_response(columns, ([getattr(row, name) for name in columns] for row in fleet.namespaces), "fleet")


async def fleet_page(request: Request) -> Response:
    try:
        fleet, filters = await _load(request)
    except RayHistoryError as error:
        return error_page(error)
    return page_response(render_fleet(fleet, filters=filters, version=__version__))


ROUTES = [
    Route(f"{HISTORY_API}fleet", fleet_json),
    Route("/fleet.json", fleet_json),
    Route("/fleet.csv", fleet_csv),
    Route("/fleet", fleet_page),
]
