"""HTTP client of a history server, or of the same application inside this process."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from rayhistory.errors import (
    ERROR_HEADER,
    DiskFull,
    LogNotFound,
    MethodNotAllowed,
    NoSessionSelected,
    NotFound,
    ProductNotBuilt,
    RayHistoryError,
    ServerOutdated,
    SessionNotIndexed,
    TimeBeforeStart,
    UsageError,
)

_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10.0, 120.0
_RETRY_INTERVAL_S = 2.0
_BEING_BUILT = (SessionNotIndexed.code, ProductNotBuilt.code)
_UNKNOWN_ROUTE = (NotFound.code, NoSessionSelected.code, MethodNotAllowed.code)
"""Error codes of a server that lacks the route. For a session that does not exist, the code is another one."""

T = TypeVar("T")
Params = dict[str, Any]


class RayResponse(msgspec.Struct):
    """The envelope of Ray's API."""

    data: dict[str, Any]


def _write_to_stderr(message: str) -> None:
    sys.stderr.write(f"rayhistory: {message}\n")


class HistoryClient:
    """Sends requests about one session, or about all if the path is empty."""

    def __init__(
        self, http: httpx.AsyncClient, path: str = "", on_wait: Callable[[str], None] = _write_to_stderr
    ) -> None:
        self.path = path
        self._http = http
        self._on_wait = on_wait

    async def json(self, uri: str, kind: type[T], params: Params | None = None) -> T:
        return decode_response(self._http, b"".join([chunk async for chunk in self.stream(uri, params)]), kind)

    async def post(self, uri: str, body: Any, kind: type[T]) -> T:
        """Send JSON and return the response. Wait while the session is being indexed."""
        while True:
            try:
                response = await self._http.post(self.path + uri, json=body, timeout=_READ_TIMEOUT_S)
            except httpx.HTTPError as error:
                raise _no_response(self._http, error) from None
            if response.status_code == 200:
                return decode_response(self._http, response.content, kind)
            await self._wait_or_raise(response)

    async def _wait_or_raise(self, response: httpx.Response) -> None:
        if response.headers.get(ERROR_HEADER) not in _BEING_BUILT:
            raise error_from(response)
        self._on_wait(_error_message(response))
        await asyncio.sleep(_RETRY_INTERVAL_S)

    async def stream(
        self, uri: str, params: Params | None = None, *, endless: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the response body. Wait while the session is being indexed."""
        while True:
            async with get(self._http, self.path + uri, params, endless=endless) as response:
                if response.status_code == 200:
                    async for chunk in response.aiter_bytes():
                        yield chunk
                    return
                await response.aread()
            await self._wait_or_raise(response)


def decode_response(http: httpx.AsyncClient, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RayHistoryError(f"{http.base_url} is not a history server: unexpected response ({error})") from None


@asynccontextmanager
async def get(
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
        raise _no_response(http, error) from None


def _no_response(http: httpx.AsyncClient, error: httpx.HTTPError) -> RayHistoryError:
    return RayHistoryError(f"{http.base_url} does not respond: {error or type(error).__name__}")


def error_from(response: httpx.Response) -> RayHistoryError:
    message = _error_message(response)
    code = response.headers.get(ERROR_HEADER)
    if code == LogNotFound.code:  # with status 500, as from Ray
        return LogNotFound(message)
    for kind in (DiskFull, TimeBeforeStart):
        if code == kind.code:
            return kind(message)
    if code in _UNKNOWN_ROUTE:
        path = response.request.url.path
        return ServerOutdated(f"the server has no {path}: it is older than this client ({message})")
    return UsageError(message) if response.status_code in (400, 404, 422) else RayHistoryError(message)


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
        text = str(error.get("message", text) if isinstance(error, dict) else body.get("msg", error or text))
    return " ".join(str(text).split()) or f"the server returned status {response.status_code}"
