"""Calls of an application inside this process end when their caller does."""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayhistory.api.in_process import InProcessTransport


def test_cancelled_request_cancels_the_call_of_the_application() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: Request) -> Response:
        started.set()
        try:
            return await asyncio.Future()
        finally:
            cancelled.set()

    async def work() -> None:
        app = Starlette(routes=[Route("/", endless)])
        async with httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://here") as http:
            request = asyncio.create_task(http.get("/"))
            await started.wait()
            request.cancel()
            await asyncio.wait({request})
            assert request.cancelled()
            assert cancelled.is_set()

    asyncio.run(asyncio.wait_for(work(), 60))
