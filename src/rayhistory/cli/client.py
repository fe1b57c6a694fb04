"""Where the commands that read get their answers: from a server, or from the same server inside this process."""

import argparse
import asyncio
import dataclasses
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.types import Message

from rayhistory.cli.choice import path_of
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.rayaddress import SERVER_VARIABLE
from rayhistory.server.app import create_app
from rayhistory.settings import Settings

_HERE = "http://here"
_CONNECT, _READ = 10.0, 120.0
_BEING_INDEXED = "This session is being indexed"
_AGAIN = 2.0
_ONLY_FOR_US: dict[str, Any] = {"allowed_hosts": (), "auth": "none", "discover": False, "live": False}
"""Whoever can read the store needs no permission of a server."""

T = TypeVar("T")
Params = dict[str, Any]


class RayAnswer(msgspec.Struct):
    """Whatever Ray's API says."""

    data: dict[str, Any]


class _Named(msgspec.Struct):
    session: str
    url: str


class _Listed(msgspec.Struct):
    sessions: list[_Named]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session", nargs="?", metavar="SESSION",
        help="session, namespace/cluster, namespace/~rayjob/name, or an address of a server (default: the newest)",
    )  # fmt: skip
    text = f"ask this server (default: read the store) [{SERVER_VARIABLE}]"
    parser.add_argument("--server", metavar="URL", help=text)


class Asking:
    """One session, and whoever answers for it."""

    def __init__(self, http: httpx.AsyncClient, path: str) -> None:
        self.path = path
        self._http = http

    async def json(self, uri: str, kind: type[T], params: Params | None = None) -> T:
        return _read(self._http, b"".join([block async for block in self.stream(uri, params)]), kind)

    async def stream(self, uri: str, params: Params | None = None, *, endless: bool = False) -> AsyncIterator[bytes]:
        """The answer as it comes. A session that is being indexed is waited for."""
        while True:
            async with answers(self._http, self.path + uri, params, endless=endless) as answer:
                if answer.status_code == 200:
                    async for block in answer.aiter_bytes():
                        yield block
                    return
                await answer.aread()
                complaint = message_of(answer)
                if not complaint.startswith(_BEING_INDEXED):
                    raise failure(answer.status_code, complaint)
            sys.stderr.write(f"rayhistory: {complaint}\n")
            await asyncio.sleep(_AGAIN)


@asynccontextmanager
async def asking(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[Asking]:
    server, name = address_of(arguments)
    async with _client(server, settings) as http:
        yield Asking(http, quote(await path_of(name, partial(_listed, http)), safe="/~@:+"))


def address_of(arguments: argparse.Namespace) -> tuple[str | None, str]:
    """The server, if one is to be asked, and what names the session."""
    server, name = arguments.server, arguments.session or ""
    named_store = any(name.startswith("setting_") for name in vars(arguments))
    if name.startswith(("http://", "https://")):
        if server:
            raise UsageError("SESSION is an address of a server already: leave out --server")
        server, slash, name = re.split("[?#]", name, maxsplit=1)[0].partition("/s/")
        name = unquote(name)
        if not slash:
            raise UsageError(f"not an address of a session: {server} (as http://host:8080/s/namespace/cluster/session)")
    if not server and not named_store:
        server = os.environ.get(SERVER_VARIABLE)
    if server and not server.startswith(("http://", "https://")):
        raise UsageError(f"--server={server}: use an address such as http://host:8080")
    return (server.rstrip("/") if server else None), name.strip("/")


@asynccontextmanager
async def _client(server: str | None, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    if server:
        token = settings.ray_auth_token.strip()
        headers = {"Authorization": f"Bearer {token}"} if token else None
        async with httpx.AsyncClient(base_url=server, headers=headers) as http:
            yield http
        return
    app = create_app(dataclasses.replace(settings, index_ahead=False, expensive_calls=0, **_ONLY_FOR_US))
    async with app.router.lifespan_context(app), httpx.AsyncClient(base_url=_HERE, transport=InProcess(app)) as http:
        yield http


async def _listed(http: httpx.AsyncClient, name: str) -> list[tuple[str, str]]:
    async with answers(http, "/home.json", {"q": name, "sort": "-started"}) as answer:
        await answer.aread()
        if answer.status_code != 200:
            raise failure(answer.status_code, message_of(answer))
        return [(row.session, row.url) for row in _read(http, answer.content, _Listed).sessions]


def _read(http: httpx.AsyncClient, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RayHistoryError(f"{http.base_url} answers, but not as a history server does: {error}") from None


@asynccontextmanager
async def answers(
    http: httpx.AsyncClient, path: str, params: Params | None, *, endless: bool = False
) -> AsyncIterator[httpx.Response]:
    """`endless` when a long silence is nothing unusual. Nothing that commands ask for is a page."""
    timeout = httpx.Timeout(_CONNECT, read=None if endless else _READ)
    try:
        async with http.stream("GET", path, params=params, timeout=timeout) as answer:
            if answer.headers.get("content-type", "").startswith("text/html"):
                raise RayHistoryError(
                    f"{http.base_url} is no history server, or a sign-in stands before it: "
                    f"it answers with a page ({answer.status_code})"
                )
            yield answer
    except httpx.HTTPError as error:
        raise RayHistoryError(f"{http.base_url} does not answer: {error or type(error).__name__}") from None


def message_of(answer: httpx.Response) -> str:
    """What an error says, in whichever of the shapes that Ray and we have for it."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    text = answer.text
    if isinstance(body, str):
        text = body
    elif isinstance(body, dict):
        own = body.get("error")
        text = own.get("message", text) if isinstance(own, dict) else body.get("msg", text)
    return " ".join(str(text).split()) or f"the server says {answer.status_code}"


def failure(status: int, message: str) -> RayHistoryError:
    return UsageError(message) if status in (400, 404) else RayHistoryError(message)


class InProcess(httpx.AsyncBaseTransport):
    """Calls an application without any socket, and gives its answers as they come."""

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
        working = asyncio.create_task(self._app(scope, _nothing_more, messages.put))
        answer = _Answer(working, messages)
        start = await answer.next()
        return httpx.Response(start["status"], headers=start["headers"], stream=answer)


async def _nothing_more() -> Message:
    return await asyncio.Future()


class _Answer(httpx.AsyncByteStream):
    def __init__(self, working: "asyncio.Task[None]", messages: "asyncio.Queue[Message]") -> None:
        self._working = working
        self._messages = messages

    async def next(self) -> Message:
        getting = asyncio.ensure_future(self._messages.get())
        await asyncio.wait({getting, self._working}, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
        if self._messages.empty():
            getting.cancel()
            await self._working
            raise httpx.ReadError("the answer breaks off")
        return await getting

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)
