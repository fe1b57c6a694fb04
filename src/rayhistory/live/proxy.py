"""Reading a live head's dashboard for a visitor: passed on as it comes, and dropped when the visitor leaves.

Heads are other people's programs. They get no cookie and no token that was not meant for them, nothing that they say
is followed or run by a browser as ours, and one that hangs holds up its own visitors only.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import websockets
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from rayhistory.errors import RayHistoryError

_CONNECT, _SILENCE = 5.0, 25.0
_LARGEST = 1 << 30
_LARGEST_MESSAGE = 16 << 20
_AT_ONCE = 16
_TURN = 5.0
_MOST_HEADS = 1000
_ASKED = {"accept", "accept-encoding", "if-none-match", "range", "user-agent", "sec-fetch-mode"}
_ANSWERED = {
    "content-type", "content-encoding", "content-length", "content-range", "content-disposition", "accept-ranges",
    "etag", "retry-after",
}  # fmt: skip
_RUN_BY_BROWSERS = ("html", "xml", "javascript", "svg")
_NEVER_RUN = (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'self'")


class Target(msgspec.Struct, frozen=True):
    """Where a head's dashboard is. Only what has discovered it makes one."""

    url: str
    headers: dict[str, str] = {}
    verify: ssl.SSLContext | bool = True


class LiveProxy:
    def __init__(self, *, silence: float = _SILENCE) -> None:
        self._silence = silence
        self._clients: OrderedDict[str, tuple[httpx.AsyncClient, asyncio.Semaphore]] = OrderedDict()

    async def close(self) -> None:
        for client, _ in self._clients.values():
            await client.aclose()

    async def get(self, target: Target, path: str, token: str = "") -> httpx.Response:
        """A small answer, whole."""
        async with self._turn(target) as http:
            return await http.get(target.url + path, headers=_with_token(target, token), timeout=_CONNECT)

    async def sign_in(self, target: Target, token: str) -> Response:
        """What the head says of a visitor's token."""
        try:
            async with self._turn(target) as http:
                said = await http.post(
                    f"{target.url}/api/authenticate",
                    headers={**target.headers, "Authorization": f"Bearer {token}"},
                    json={},
                )
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
        asked = {name: value for name, value in HTTPConnection(scope).headers.items() if name in _ASKED}
        query = scope["query_string"].decode("latin-1")
        url = target.url + path + (f"?{query}" if query else "")
        silence = None if "/logs/stream" in path else self._silence
        timeout = httpx.Timeout(_CONNECT, read=silence)
        started = False
        try:
            async with self._turn(target) as http:
                request = http.build_request(
                    scope["method"], url, headers=asked | _with_token(target, token), timeout=timeout
                )
                answer = await http.send(request, stream=True)
                try:
                    if answer.is_redirect or answer.status_code < 200:
                        await _refused("The cluster's dashboard points elsewhere, where nobody follows")(
                            scope, receive, send
                        )
                        return
                    await send(
                        {"type": "http.response.start", "status": answer.status_code, "headers": _headers(answer)}
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
        url = "ws" + target.url.removeprefix("http") + path
        tls = target.verify if url.startswith("wss") and isinstance(target.verify, ssl.SSLContext) else None
        try:
            head = await connect(
                url, additional_headers=_with_token(target, token), ssl=tls, open_timeout=_CONNECT, ping_interval=None,
                max_size=_LARGEST_MESSAGE, proxy=None, compression=None,  # of compressed messages Ray loses all
            )  # fmt: skip
        except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
            await socket.send_denial_response(_no_answer(error))
            return
        async with head:
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
    async def _turn(self, target: Target) -> AsyncIterator[httpx.AsyncClient]:
        """Each head has a few connections of its own."""
        known = self._clients.get(target.url)
        if known is None:
            known = self._clients[target.url] = (
                httpx.AsyncClient(verify=target.verify, trust_env=False, follow_redirects=False),
                asyncio.Semaphore(_AT_ONCE),
            )
        self._clients.move_to_end(target.url)
        client, turns = known
        try:
            async with asyncio.timeout(_TURN):
                await turns.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("too many requests wait for it") from None
        try:
            yield client
        finally:
            turns.release()
            await self._forget_old()

    async def _forget_old(self) -> None:
        while len(self._clients) > _MOST_HEADS:
            _, (client, _) = self._clients.popitem(last=False)
            await client.aclose()


async def _relay(head: ClientConnection, socket: WebSocket) -> None:
    try:
        async for message in head:
            if isinstance(message, str):
                await socket.send_text(message)
            else:
                await socket.send_bytes(message)
    except WebSocketDisconnect:
        return


async def _left(receive: Receive) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


def _with_token(target: Target, token: str) -> dict[str, str]:
    """In the header that the Kubernetes API passes on; it keeps `Authorization` for itself."""
    return target.headers | ({"X-Ray-Authorization": f"Bearer {token}"} if token else {})


def _headers(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    """What a browser would run is only text here, whatever the head calls it."""
    kept = [
        (name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items() if name in _ANSWERED
    ]
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
