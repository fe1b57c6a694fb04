"""HTTP client of the inspect commands, for a history server or for the same application inside this process."""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.types import Message

from rayhistory.cli.session_args import server_and_session, session_path
from rayhistory.errors import ERROR_HEADER, RayHistoryError, SessionNotIndexed, UsageError
from rayhistory.server.app import create_app
from rayhistory.settings import Settings

_IN_PROCESS_URL = "http://in-process"
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10.0, 120.0
_RETRY_INTERVAL_S = 2.0
_IN_PROCESS_SETTINGS: dict[str, Any] = {
    "allowed_hosts": (), "auth": "none", "discover": False, "live": False, "index_ahead": False, "rate_limit": 0,
}  # fmt: skip
"""A user who can read the store needs no further permission."""

T = TypeVar("T")
Params = dict[str, Any]


class RayResponse(msgspec.Struct):
    """The envelope of Ray's API."""

    data: dict[str, Any]


class _SessionRow(msgspec.Struct):
    session: str
    url: str


class _SessionList(msgspec.Struct):
    sessions: list[_SessionRow]


class HistoryClient:
    """Sends requests about one session."""

    def __init__(self, http: httpx.AsyncClient, path: str) -> None:
        self.path = path
        self._http = http

    async def json(self, uri: str, kind: type[T], params: Params | None = None) -> T:
        return _decode(self._http, b"".join([chunk async for chunk in self.stream(uri, params)]), kind)

    async def stream(self, uri: str, params: Params | None = None, *, endless: bool = False) -> AsyncIterator[bytes]:
        """Yield the response body. Wait while the session is being indexed."""
        while True:
            async with _get(self._http, self.path + uri, params, endless=endless) as response:
                if response.status_code == 200:
                    async for chunk in response.aiter_bytes():
                        yield chunk
                    return
                await response.aread()
                if response.headers.get(ERROR_HEADER) != SessionNotIndexed.code:
                    raise _error_from(response)
            sys.stderr.write(f"rayhistory: {_error_message(response)}\n")
            await asyncio.sleep(_RETRY_INTERVAL_S)


@asynccontextmanager
async def open_client(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[HistoryClient]:
    """Open a client for the session and the server that the arguments name."""
    server, name = server_and_session(arguments)
    async with _open_http(server, settings) as http:
        path = await session_path(name, partial(_list_sessions, http))
        yield HistoryClient(http, quote(path, safe="/~@:+"))


@asynccontextmanager
async def _open_http(server: str | None, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    if server:
        token = settings.ray_auth_token.strip()
        headers = {"Authorization": f"Bearer {token}"} if token else None
        async with httpx.AsyncClient(base_url=server, headers=headers) as http:
            yield http
        return
    app = create_app(dataclasses.replace(settings, **_IN_PROCESS_SETTINGS))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(base_url=_IN_PROCESS_URL, transport=_InProcessTransport(app)) as http,
    ):
        yield http


async def _list_sessions(http: httpx.AsyncClient, name: str) -> list[tuple[str, str]]:
    async with _get(http, "/home.json", {"q": name}) as response:
        await response.aread()
        if response.status_code != 200:
            raise _error_from(response)
        return [(row.session, row.url) for row in _decode(http, response.content, _SessionList).sessions]


def _decode(http: httpx.AsyncClient, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RayHistoryError(f"{http.base_url} is not a history server: unexpected response ({error})") from None


@asynccontextmanager
async def _get(
    http: httpx.AsyncClient, path: str, params: Params | None, *, endless: bool = False
) -> AsyncIterator[httpx.Response]:
    """Send a GET request. `endless` disables the read timeout, for responses that may pause."""
    timeout = httpx.Timeout(_CONNECT_TIMEOUT_S, read=None if endless else _READ_TIMEOUT_S)
    try:
        async with http.stream("GET", path, params=params, timeout=timeout) as response:
            # No request of a command returns a page.
            if response.headers.get("content-type", "").startswith("text/html"):
                raise RayHistoryError(
                    f"{http.base_url} is not a history server, or it requires sign-in: "
                    f"it returned an HTML page (status {response.status_code})"
                )
            yield response
    except httpx.HTTPError as error:
        raise RayHistoryError(f"{http.base_url} does not respond: {error or type(error).__name__}") from None


def _error_from(response: httpx.Response) -> RayHistoryError:
    message = _error_message(response)
    return UsageError(message) if response.status_code in (400, 404) else RayHistoryError(message)


def _error_message(response: httpx.Response) -> str:
    """Return the message of an error response, in any of the shapes of Ray and of this project."""
    try:
        body = response.json()
    except ValueError:
        body = None
    text = response.text
    if isinstance(body, str):
        text = body
    elif isinstance(body, dict):
        error = body.get("error")
        text = error.get("message", text) if isinstance(error, dict) else body.get("msg", text)
    return " ".join(str(text).split()) or f"the server returned status {response.status_code}"


class _InProcessTransport(httpx.AsyncBaseTransport):
    """Calls an ASGI application without a socket. Unlike httpx's own transport, it streams responses."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "scheme": request.url.scheme, "path": request.url.path, "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query, "root_path": "", "client": None, "server": (request.url.host, 80),
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }  # fmt: skip
        messages: asyncio.Queue[Message] = asyncio.Queue(1)
        app_task = asyncio.create_task(self._app(scope, _receive_nothing, messages.put))
        body = _ResponseBody(app_task, messages)
        start = await body.next()
        return httpx.Response(start["status"], headers=start["headers"], stream=body)


async def _receive_nothing() -> Message:
    return await asyncio.Future()


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
            raise httpx.ReadError("the response is incomplete")
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
