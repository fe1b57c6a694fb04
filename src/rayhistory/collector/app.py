"""The collector's HTTP routes."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rayhistory.collector.ingest import Ingest
from rayhistory.collector.metrics import CONTENT_TYPE, Metrics


def make_app(ingest: Ingest | None, metrics: Metrics, why_not_ready: Callable[[], str | None]) -> Starlette:
    """`ingest` is None when events are switched off."""

    async def no_events(_: Request) -> Response:
        return PlainTextResponse("events are switched off (ENABLE_EVENT_COLLECTOR)\n", 404)

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        reason = why_not_ready()
        return PlainTextResponse(f"{reason}\n", 503) if reason else PlainTextResponse("ok\n")

    async def figures(_: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/v1/events", ingest or no_events, methods=["POST"]),
            Route("/livez", alive),
            Route("/readyz", ready),
            Route("/readz", ready),
            Route("/metrics", figures),
        ]
    )
