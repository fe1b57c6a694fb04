"""Reading a live head's dashboard for a visitor: passed on as it comes, and dropped when the visitor leaves.

Heads are other people's programs. They get no cookie and no token that was not meant for them, nothing that they say
is followed or run by a browser as ours, and one that hangs holds up its own visitors only.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import quote

import httpx
import msgspec
import websockets
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from rayhistory.errors import RayHistoryError

_CONNECT, _SILENCE = 5.0, 25.0
_LARGEST = 1 << 30
_LARGEST_SMALL = 1 << 20
_LARGEST_MESSAGE = 16 << 20
_AT_ONCE = 16
_FOLLOWERS = 64
_TURN = 5.0
_MOST_HEADS = 1000
_NOT_CHANGED = 304
_FOLLOWED = "/logs/stream"
_ASKED = {b"accept", b"accept-encoding", b"if-none-match", b"range", b"user-agent", b"sec-fetch-mode"}
_ANSWERED = {
    b"content-type", b"content-encoding", b"content-length", b"content-range", b"content-disposition",
    b"accept-ranges", b"etag", b"retry-after",
}  # fmt: skip
_RUN_BY_BROWSERS = ("html", "xml", "javascript", "svg")
_NEVER_RUN = (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'self'")


class Target(msgspec.Struct, frozen=True):
    """Where a head's dashboard is. Only what has discovered it makes one."""

    url: str
    headers: dict[str, str] = {}
    verify: ssl.SSLContext | bool = True


class _Client:
    """The connections to one head. Whoever follows a log keeps one for long, and takes none from the others."""

    def __init__(self, target: Target) -> None:
        self.http = httpx.AsyncClient(
            verify=target.verify,
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # all visitors share the connections
            headers={"Accept-Encoding": "identity"},
        )
        self.turns = asyncio.Semaphore(_AT_ONCE)
        self.followers = asyncio.Semaphore(_FOLLOWERS)


class LiveProxy:
    def __init__(self, *, silence: float = _SILENCE) -> None:
        self._silence = silence
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.http.aclose()

    async def get(self, target: Target, path: str, token: str = "") -> httpx.Response:
        """A small answer, whole."""
        async with self._turn(target) as http:
            return await _small(http, http.build_request("GET", target.url + path, headers=_headers(target, token)))

    async def sign_in(self, target: Target, token: str) -> Response:
        """What the head says of a visitor's token. Where `Authorization` is not the head's, it is just asked for
        something: Ray's own way looks for tokens nowhere else."""
        try:
            if target.headers:
                said = await self.get(target, "/api/version", token)
            else:
                headers = {"Authorization": f"Bearer {token}"}
                async with self._turn(target) as http:
                    url = f"{target.url}/api/authenticate"
                    said = await _small(http, http.build_request("POST", url, headers=headers, json={}))
        except httpx.HTTPError as error:
            return _no_answer(error)
        return PlainTextResponse(said.text[:1000], said.status_code)

    async def http(self, target: Target, path: str, token: str, *, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, until it is answered or the visitor has left."""
        working = asyncio.create_task(self._answer(target, path, token, scope=scope, receive=receive, send=send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            working.cancel()
            result, _ = await asyncio.gather(working, leaving, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def _answer(
        self, target: Target, path: str, token: str, *, scope: Scope, receive: Receive, send: Send
    ) -> None:
        asked = [(name, value) for name, value in scope["headers"] if name in _ASKED]
        query = scope["query_string"].decode("latin-1")
        url = target.url + quote(path) + (f"?{query}" if query else "")
        following = _FOLLOWED in path
        timeout = httpx.Timeout(_CONNECT, read=None if following else self._silence)
        started = False
        try:
            async with self._turn(target, following=following) as http:
                request = http.build_request(
                    scope["method"], url, headers=[*asked, *_headers(target, token)], timeout=timeout
                )
                answer = await http.send(request, stream=True)
                try:
                    if answer.status_code < 200 or (answer.is_redirect and answer.status_code != _NOT_CHANGED):
                        await _refused("The cluster's dashboard points elsewhere, where nobody follows")(
                            scope, receive, send
                        )
                        return
                    await send(
                        {"type": "http.response.start", "status": answer.status_code, "headers": _passed_on(answer)}
                    )
                    started = True
                    passed = 0
                    async for block in answer.aiter_raw():
                        passed += len(block)
                        if passed > _LARGEST:
                            raise RayHistoryError(f"an answer of {target.url} is larger than {_LARGEST} bytes")
                        await send({"type": "http.response.body", "body": block, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
                finally:
                    await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if started:
                raise RayHistoryError(f"an answer of {target.url} breaks off: {error!r}") from None
            await _no_answer(error)(scope, receive, send)

    async def websocket(self, target: Target, path: str, token: str, socket: WebSocket) -> None:
        """What the head sends, to the visitor; never the other way."""
        url = "ws" + target.url.removeprefix("http") + quote(path)
        tls = target.verify if url.startswith("wss") and isinstance(target.verify, ssl.SSLContext) else None
        try:
            head = await connect(
                url, additional_headers=_headers(target, token), ssl=tls, open_timeout=_CONNECT, ping_interval=None,
                max_size=_LARGEST_MESSAGE, max_queue=1, close_timeout=1, proxy=None,
                compression=None,  # of compressed messages Ray loses all
            )  # fmt: skip
        except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
            await socket.send_denial_response(_no_answer(error))
            return
        async with head:
            with suppress(WebSocketDisconnect):
                await socket.accept()
            sending, leaving = asyncio.create_task(_relay(head, socket)), asyncio.create_task(_left(socket.receive))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sending.cancel()
                leaving.cancel()
                failure, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
        if failure is None:
            await socket.close()

    @asynccontextmanager
    async def _turn(self, target: Target, *, following: bool = False) -> AsyncIterator[httpx.AsyncClient]:
        """Each head has a few connections of its own."""
        client = self._clients.get(target.url)
        if client is None:
            client = self._clients[target.url] = _Client(target)
        self._clients.move_to_end(target.url)
        turns = client.followers if following else client.turns
        try:
            async with asyncio.timeout(_TURN):
                await turns.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("too many requests wait for it") from None
        try:
            yield client.http
        finally:
            turns.release()
            await self._forget_old()

    async def _forget_old(self) -> None:
        while len(self._clients) > _MOST_HEADS:
            _, client = self._clients.popitem(last=False)
            await client.http.aclose()


async def _small(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """An answer, if it is small as it comes; one that is packed stays so."""
    body = b""
    try:
        async with asyncio.timeout(2 * _CONNECT):
            answer = await http.send(request, stream=True)
            try:
                async for block in answer.aiter_raw():
                    body += block
                    if len(body) > _LARGEST_SMALL:
                        raise httpx.DecodingError("it says far too much")
            finally:
                await answer.aclose()
    except TimeoutError:
        raise httpx.ReadTimeout("it is too slow") from None
    return httpx.Response(answer.status_code, content=body)


async def _relay(head: ClientConnection, socket: WebSocket) -> None:
    async for message in head:
        if isinstance(message, str):
            await socket.send_text(message)
        else:
            await socket.send_bytes(message)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


def _headers(target: Target, token: str) -> list[tuple[str, str]]:
    """In the header that the Kubernetes API passes on; it keeps `Authorization` for itself."""
    return [*target.headers.items(), *([("X-Ray-Authorization", f"Bearer {token}")] if token else [])]


def _passed_on(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    """What a browser would run is only text here, whatever the head calls it."""
    kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() in _ANSWERED]
    kind = answer.headers.get("content-type", "")
    if any(word in kind.lower() for word in _RUN_BY_BROWSERS):
        kept = [(name, b"text/plain" if name == b"content-type" else value) for name, value in kept]
    return [*kept, (b"cache-control", b"no-store"), _NEVER_RUN]


def _no_answer(error: Exception) -> Response:
    slow = isinstance(error, httpx.TimeoutException | TimeoutError)
    status = 503 if isinstance(error, httpx.PoolTimeout) else 504 if slow else 502
    return _refused(f"The cluster's dashboard does not answer: {error or type(error).__name__}", status)


def _refused(text: str, status: int = 502) -> Response:
    return PlainTextResponse(text, status)
