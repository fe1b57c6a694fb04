"""Figures of all runs that the visitor of a request may see."""

import asyncio
import time

from starlette.requests import Request

from rayhistory.runs.fleet import MAX_DAYS, Fleet, fleet_of
from rayhistory.server.runs_api.run_listing import run_listing_of
from rayhistory.server.runs_api.run_query import RunFilters, parse_run_filters

_DEFAULT_DAYS = 30
_DAY_MS = 86_400_000


async def load_fleet(request: Request) -> tuple[Fleet, RunFilters]:
    filters, listing = parse_run_filters(request.query_params), run_listing_of(request)
    visible = await listing.visible(request)
    chosen = [each for each in visible.summaries if filters.namespace in (None, each.namespace)]
    days = min(-(-filters.since_ms // _DAY_MS), MAX_DAYS) if filters.since_ms else _DEFAULT_DAYS
    fleet = await asyncio.to_thread(fleet_of, chosen, int(time.time() * 1000), days, listing.prices)
    return fleet, RunFilters(namespace=filters.namespace, since=filters.since, namespaces=visible.namespaces)
