"""Figures of the fleet, as JSON and CSV."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError
from rayhistory.runs.fleet import FleetFigures
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.paths import HISTORY_API
from rayhistory.server.http.responses import json_response
from rayhistory.server.runs_api.csv_rows import csv_response
from rayhistory.server.runs_api.visible_fleet import load_fleet


async def fleet_json(request: Request) -> Response:
    try:
        return json_response((await load_fleet(request))[0])
    except RayHistoryError as error:
        return api_error_response(error)


async def fleet_csv(request: Request) -> Response:
    try:
        fleet, _ = await load_fleet(request)
    except RayHistoryError as error:
        return api_error_response(error)
    columns = FleetFigures.__struct_fields__
    return csv_response(columns, ([getattr(row, name) for name in columns] for row in fleet.namespaces), "fleet")


ROUTES = [
    Route(f"{HISTORY_API}fleet", fleet_json),
    Route("/fleet.json", fleet_json),
    Route("/fleet.csv", fleet_csv),
]
