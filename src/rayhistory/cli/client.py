"""Open the HTTP client of a command: to a history server, or to the same application in this process."""

import argparse
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import httpx
import msgspec

from rayhistory import library
from rayhistory.api.http_client import HistoryClient, Params, decode_response, error_from, get
from rayhistory.api.session_names import listing_filters, quote_session_path
from rayhistory.cli.session_args import server_and_session, session_path
from rayhistory.server.history_api.api_types import SessionList
from rayhistory.settings import Settings


@asynccontextmanager
async def open_client(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[HistoryClient]:
    """Open a client for the session and the server that the arguments name."""
    server, name = server_and_session(arguments)
    async with open_http(server, settings) as http:
        path = await session_path(name, partial(_list_sessions, http))
        yield HistoryClient(http, quote_session_path(path))


@asynccontextmanager
async def open_server(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[HistoryClient]:
    """Open a client for requests about all sessions."""
    server, _ = server_and_session(arguments)
    async with open_http(server, settings) as http:
        yield HistoryClient(http)


def open_http(server: str | None, settings: Settings) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """Open an HTTP client of the server. If `server` is None, it calls a server application in this process."""
    return library.open_server(server, settings.ray_auth_token) if server else library.open_store_application(settings)


async def _list_sessions(http: httpx.AsyncClient, name: str) -> list[tuple[str, str]]:
    page = await _read_page(http, "/home.json", listing_filters(name))
    return [(row.session, row.url) for row in page.sessions]


async def read_sessions(
    server: str | None, settings: Settings, filters: Params, limit: int | None = None
) -> SessionList:
    """Return the sessions that match the filters, at most `limit`, from all pages."""
    async with open_http(server, settings) as http:
        found = page = await _read_page(http, "/home.json", filters)
        rows = page.sessions
        while page.next and (limit is None or len(rows) < limit):
            page = await _read_page(http, page.next, None)
            rows += page.sessions
        return msgspec.structs.replace(found, sessions=rows[:limit])


async def _read_page(http: httpx.AsyncClient, path: str, params: Params | None) -> SessionList:
    async with get(http, path, params) as response:
        await response.aread()
        if response.status_code != 200:
            raise error_from(response)
        return decode_response(http, response.content, SessionList)
