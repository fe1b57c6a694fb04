"""The collector's HTTP routes."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rayhistory.collector.ingest.endpoint import IngestEndpoint
from rayhistory.collector.telemetry import CONTENT_TYPE, Telemetry


def make_app(
    ingest: IngestEndpoint | None, telemetry: Telemetry, not_ready_reason: Callable[[], str | None]
) -> Starlette:
    """Build the ASGI application; `ingest` is None when event collection is disabled."""

    async def events_disabled(_: Request) -> Response:
        return PlainTextResponse("event collection is disabled (ENABLE_EVENT_COLLECTOR)\n", 404)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = not_ready_reason()
        return PlainTextResponse(f"{reason}\n", 503) if reason else PlainTextResponse("ok\n")

    async def metrics(_: Request) -> Response:
        return Response(telemetry.exposition(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/v1/events", ingest or events_disabled, methods=["POST"]),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/readz", readyz),
            Route("/metrics", metrics),
        ]
    )
