"""Call an ASGI application inside this process, without a socket."""

import asyncio
from collections.abc import AsyncIterator

import httpx
from starlette.applications import Starlette
from starlette.datastructures import Address
from starlette.types import Message, Receive


class InProcessTransport(httpx.AsyncBaseTransport):
    """Calls an ASGI application without a socket. Unlike httpx's own transport, it streams responses."""

    def __init__(self, app: Starlette, client: Address | None = None) -> None:
        self._app = app
        self._client = client
        """The client address that the application sees."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "scheme": request.url.scheme, "path": request.url.path, "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query, "root_path": "", "client": self._client,
            "server": (request.url.host, request.url.port or 80),
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }  # fmt: skip
        messages: asyncio.Queue[Message] = asyncio.Queue(1)
        app_task = asyncio.create_task(self._app(scope, _receiver(await request.aread()), messages.put))
        body = _ResponseBody(app_task, messages)
        try:
            start = await body.next()
        except BaseException:  # such as a cancellation: nobody closes a response that was never returned
            await body.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=body)


def _receiver(body: bytes) -> Receive:
    """Return a function that returns the body once and then waits, because the client stays connected."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        message = next(messages, None)
        return await asyncio.Future[Message]() if message is None else message

    return receive


class _ResponseBody(httpx.AsyncByteStream):
    def __init__(self, app_task: "asyncio.Task[None]", messages: "asyncio.Queue[Message]") -> None:
        self._app_task = app_task
        self._messages = messages

    async def next(self) -> Message:
        next_message = asyncio.ensure_future(self._messages.get())
        await asyncio.wait({next_message, self._app_task}, return_when=asyncio.FIRST_COMPLETED)
        if next_message.done():
            return next_message.result()
        if self._messages.empty():
            next_message.cancel()
            await self._app_task
            raise httpx.ReadError("the response ended early")
        return await next_message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._app_task.cancel()
        await asyncio.gather(self._app_task, return_exceptions=True)
