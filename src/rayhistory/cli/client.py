"""Open the HTTP client of a command: to a history server, or to the same application inside this process."""

import argparse
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from rayhistory.api.http_client import HistoryClient, decode_response, error_from, get
from rayhistory.api.in_process import InProcessTransport
from rayhistory.cli.session_args import server_and_session, session_path
from rayhistory.server.app import create_app
from rayhistory.settings import Settings

_IN_PROCESS_URL = "http://in-process"
_IN_PROCESS_SETTINGS: dict[str, Any] = {
    "allowed_hosts": (), "auth": "none", "discover": False, "live": False, "index_ahead": False, "rate_limit": 0,
}  # fmt: skip
"""A user who can read the store needs no further permission."""


class _SessionRow(msgspec.Struct):
    session: str
    url: str


class _SessionList(msgspec.Struct):
    sessions: list[_SessionRow]


@asynccontextmanager
async def open_client(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[HistoryClient]:
    """Open a client for the session and the server that the arguments name."""
    server, name = server_and_session(arguments)
    async with _open_http(server, settings) as http:
        path = await session_path(name, partial(_list_sessions, http))
        yield HistoryClient(http, quote(path, safe="/~@:+"))


@asynccontextmanager
async def open_server(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[HistoryClient]:
    """Open a client for requests about all sessions."""
    server, _ = server_and_session(arguments)
    async with _open_http(server, settings) as http:
        yield HistoryClient(http)


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
        httpx.AsyncClient(base_url=_IN_PROCESS_URL, transport=InProcessTransport(app)) as http,
    ):
        yield http


async def _list_sessions(http: httpx.AsyncClient, name: str) -> list[tuple[str, str]]:
    async with get(http, "/home.json", {"q": name}) as response:
        await response.aread()
        if response.status_code != 200:
            raise error_from(response)
        return [(row.session, row.url) for row in decode_response(http, response.content, _SessionList).sessions]
