"""Proxy for the dashboard of a live head. It streams responses until they end or the visitor disconnects.

Heads run untrusted code. They get no cookies and only tokens that are meant for them. Redirects are not followed,
browsers never run a head's responses under our origin, and a head that hangs delays only its own visitors.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import quote

import httpx
import websockets
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from rayhistory.errors import ERROR_HEADER, HeadError, HeadUnavailable
from rayhistory.live.head_address import HeadAddress

_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 5.0, 25.0
_SLOT_TIMEOUT_S = 5.0
_MAX_RESPONSE_BYTES = 1 << 30
_MAX_SMALL_RESPONSE_BYTES = 1 << 20
_MAX_MESSAGE_BYTES = 16 << 20
_MAX_SIGN_IN_CHARS = 1000
_MAX_REQUESTS_PER_HEAD = 16
_MAX_FOLLOWERS_PER_HEAD = 64
_MAX_HEADS = 1000
_NOT_MODIFIED = 304
_LOG_STREAM = "/logs/stream"
_REQUEST_HEADERS = {b"accept", b"accept-encoding", b"if-none-match", b"range", b"user-agent", b"sec-fetch-mode"}
_RESPONSE_HEADERS = {
    b"content-type", b"content-encoding", b"content-length", b"content-range", b"content-disposition",
    b"accept-ranges", b"etag", b"retry-after",
}  # fmt: skip
_ACTIVE_CONTENT = ("html", "xml", "javascript", "svg")
_SANDBOX = (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'self'")


class _HeadClient:
    """Connections to one head. Requests that follow a log take long, so they have a separate limit."""

    def __init__(self, address: HeadAddress) -> None:
        self.http = httpx.AsyncClient(
            verify=address.verify,
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # all visitors share the connections
            headers={"Accept-Encoding": "identity"},
        )
        self.request_slots = asyncio.Semaphore(_MAX_REQUESTS_PER_HEAD)
        self.follower_slots = asyncio.Semaphore(_MAX_FOLLOWERS_PER_HEAD)


class _connect_directly(connect):  # noqa: N801 - used like the function it extends
    """A WebSocket connection that follows no redirect: a head could send the visitor's headers to any address."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class HeadProxy:
    def __init__(self, *, read_timeout: float = _READ_TIMEOUT_S) -> None:
        self._read_timeout = read_timeout
        # An OrderedDict and no LruCache: clients that are dropped must be closed, which has to be awaited.
        self._clients: OrderedDict[tuple[str, str], _HeadClient] = OrderedDict()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.http.aclose()

    async def get(self, address: HeadAddress, path: str, token: str = "") -> httpx.Response:
        """Send a GET request to the head, and read the response into memory if it is small."""
        async with self._client(address) as http:
            request = _build_request(http, address, "GET", path, headers=_head_headers(address, token))
            return await _send_small(http, request)

    async def sign_in(self, address: HeadAddress, token: str) -> Response:
        """Check a visitor's token at the head.

        If the head is reached through the Kubernetes API, request its version with the token. That API does not forward
        `Authorization`, and Ray's `/api/authenticate` reads no other header.
        """
        try:
            if address.headers:
                response = await self.get(address, "/api/version", token)
            else:
                headers = {"Authorization": f"Bearer {token}"}
                async with self._client(address) as http:
                    request = _build_request(http, address, "POST", "/api/authenticate", headers=headers, json={})
                    response = await _send_small(http, request)
        except httpx.HTTPError as error:
            return _unavailable_response(error)
        return PlainTextResponse(response.text[:_MAX_SIGN_IN_CHARS], response.status_code)

    async def http(
        self, address: HeadAddress, path: str, token: str, *, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Proxy a request until the response ends or the visitor disconnects."""
        working = asyncio.create_task(self._proxy(address, path, token, scope=scope, receive=receive, send=send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            working.cancel()
            result, _ = await asyncio.gather(working, leaving, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def _proxy(
        self, address: HeadAddress, path: str, token: str, *, scope: Scope, receive: Receive, send: Send
    ) -> None:
        forwarded = [(name, value) for name, value in scope["headers"] if name in _REQUEST_HEADERS]
        headers = [*forwarded, *_head_headers(address, token)]
        query = scope["query_string"].decode("latin-1")
        path_and_query = quote(path) + (f"?{query}" if query else "")
        following = _LOG_STREAM in path
        timeout = httpx.Timeout(_CONNECT_TIMEOUT_S, read=None if following else self._read_timeout)
        started = False
        try:
            async with self._client(address, following=following) as http:
                request = _build_request(
                    http, address, scope["method"], path_and_query, headers=headers, timeout=timeout
                )
                response = await http.send(request, stream=True)
                try:
                    status = response.status_code
                    if status < 200 or (response.is_redirect and status != _NOT_MODIFIED):
                        error = HeadError("The cluster's dashboard sent a redirect, which is not followed")
                        await _error_response(error)(scope, receive, send)
                        return
                    await send({"type": "http.response.start", "status": status, "headers": _proxied_headers(response)})
                    started = True
                    sent = 0
                    async for chunk in response.aiter_raw():
                        sent += len(chunk)
                        if sent > _MAX_RESPONSE_BYTES:
                            raise HeadError(f"response of {address.url} is larger than {_MAX_RESPONSE_BYTES} bytes")
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if started:
                raise HeadError(f"response of {address.url} ended early: {error!r}") from None
            await _unavailable_response(error)(scope, receive, send)

    async def websocket(self, address: HeadAddress, path: str, token: str, socket: WebSocket) -> None:
        """Relay the head's messages to the visitor. Nothing is sent in the other direction."""
        url = "ws" + address.url.removeprefix("http") + quote(path)
        tls = address.verify if url.startswith("wss") and isinstance(address.verify, ssl.SSLContext) else None
        checked: dict[str, Any] = {"host": address.ip} if address.ip else {}
        try:
            head = await _connect_directly(
                url, additional_headers=_head_headers(address, token), ssl=tls, open_timeout=_CONNECT_TIMEOUT_S,
                ping_interval=None, max_size=_MAX_MESSAGE_BYTES, max_queue=1, close_timeout=1, proxy=None,
                compression=None,  # Ray loses compressed messages
                **checked,
            )  # fmt: skip
        except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
            await socket.send_denial_response(_unavailable_response(error))
            return
        async with head:
            with suppress(WebSocketDisconnect):
                await socket.accept()
            sending = asyncio.create_task(_relay_messages(head, socket))
            leaving = asyncio.create_task(_wait_for_disconnect(socket.receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sending.cancel()
                leaving.cancel()
                failure, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
        if failure is None:
            await socket.close()

    @asynccontextmanager
    async def _client(self, address: HeadAddress, *, following: bool = False) -> AsyncIterator[httpx.AsyncClient]:
        """Yield an HTTP client of the head, and hold one of the head's connection slots meanwhile."""
        key = address.url, address.ip
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _HeadClient(address)
        self._clients.move_to_end(key)
        slots = client.follower_slots if following else client.request_slots
        try:
            async with asyncio.timeout(_SLOT_TIMEOUT_S):
                await slots.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("too many requests are waiting for this dashboard") from None
        try:
            yield client.http
        finally:
            slots.release()
            await self._close_least_recently_used()

    async def _close_least_recently_used(self) -> None:
        while len(self._clients) > _MAX_HEADS:
            _, client = self._clients.popitem(last=False)
            await client.http.aclose()


def _build_request(
    http: httpx.AsyncClient, address: HeadAddress, method: str, path: str, *, headers: Any, **options: Any
) -> httpx.Request:
    """Build a request to the checked IP address, if there is one, with the name of the URL as Host."""
    request = http.build_request(method, address.connect_url + path, headers=headers, **options)
    if address.ip:
        request.headers["Host"] = address.authority
        request.extensions = {**request.extensions, "sni_hostname": address.host}
    return request


async def _send_small(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Send a request, and read its response within limits of size and time.

    The response is not decompressed, so the size limit applies to the transferred bytes.
    """
    body = b""
    try:
        async with asyncio.timeout(2 * _CONNECT_TIMEOUT_S):
            response = await http.send(request, stream=True)
            try:
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > _MAX_SMALL_RESPONSE_BYTES:
                        raise httpx.DecodingError("response is too large")
            finally:
                await response.aclose()
    except TimeoutError:
        raise httpx.ReadTimeout("response is too slow") from None
    return httpx.Response(response.status_code, content=body)


async def _relay_messages(head: ClientConnection, socket: WebSocket) -> None:
    async for message in head:
        if isinstance(message, str):
            await socket.send_text(message)
        else:
            await socket.send_bytes(message)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


def _head_headers(address: HeadAddress, token: str) -> list[tuple[str, str]]:
    """Return the request headers that are sent to the head.

    The token is sent in a header that the Kubernetes API forwards, unlike `Authorization`.
    """
    return [*address.headers.items(), *([("X-Ray-Authorization", f"Bearer {token}")] if token else [])]


def _proxied_headers(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response for the visitor. HTML and other active content becomes plain text."""
    headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() in _RESPONSE_HEADERS]
    content_type = response.headers.get("content-type", "").lower()
    if any(kind in content_type for kind in _ACTIVE_CONTENT):
        headers = [(name, b"text/plain" if name == b"content-type" else value) for name, value in headers]
    if response.status_code >= 400:
        headers.append((ERROR_HEADER.lower().encode(), HeadError.code.encode()))
    return [*headers, (b"cache-control", b"no-store"), _SANDBOX]


def _unavailable_response(reason: Exception) -> Response:
    error = HeadUnavailable(f"The cluster's dashboard does not respond: {reason or type(reason).__name__}")
    if isinstance(reason, httpx.PoolTimeout):
        error.http_status = 503
    elif isinstance(reason, httpx.TimeoutException | TimeoutError):
        error.http_status = 504
    return _error_response(error)


def _error_response(error: HeadError) -> Response:
    return PlainTextResponse(str(error), error.http_status, {ERROR_HEADER: error.code})
