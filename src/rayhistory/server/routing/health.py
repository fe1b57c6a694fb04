"""Health and metrics endpoints of the server itself."""

import logging

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.errors import RayHistoryError
from rayhistory.server.http.error_responses import error_headers
from rayhistory.server.http.responses import text_response
from rayhistory.server.http.view_routes import resolver_of
from rayhistory.server.runs_api.fleet_metrics import fleet_metrics

log = logging.getLogger(__name__)


async def livez(request: Request) -> Response:
    return text_response("ok")


async def readyz(request: Request) -> Response:
    """Return 200 if the store can be listed.

    The reason of a failure is only logged, because it names buckets, hosts and keys.
    """
    try:
        await resolver_of(request).catalog.entries()
    except RayHistoryError as error:
        if request.app.state.ready:  # probes repeat every few seconds
            log.warning("readiness check failed, cannot list the store (logged once)", extra={"reason": str(error)})
        request.app.state.ready = False
        return text_response("the object store cannot be listed", 503, error_headers(error))
    request.app.state.ready = True
    return text_response("ok")


async def metrics(request: Request) -> Response:
    registry = request.app.state.request_metrics.registry
    fleet = await fleet_metrics(request, request.app.state.runs, by_namespace=request.app.state.names_are_public)
    return Response(generate_latest(registry) + fleet, media_type="text/plain; version=0.0.4")


ROUTES = [
    Route("/livez", livez),
    Route("/readyz", readyz),
    Route("/readz", readyz),
    Route("/metrics", metrics),
]
