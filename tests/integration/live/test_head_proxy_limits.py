"""Heads with endless, malformed or slow responses, and visitors who send unusual requests to them."""

import gzip
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from support import head_double
from support.head_double import BLOCK, HeadDouble
from support.kubernetes_double import run_app
from support.live_server import LIVE, REF, TASKS, TOKEN, eventually, register_head, run_live_server, serve_with_head
from support.two_namespaces import bearer

VERSION = {"ray_version": "2.60.0", "session_name": REF.session}
NODES = f"{LIVE}/nodes"


class EndlessResponder:
    """Send a response of 1 GB and count the blocks that are read."""

    def __init__(self) -> None:
        self.blocks = 0

    async def respond(self, request: Request) -> Response:
        async def blocks() -> AsyncIterator[bytes]:
            for _ in range(1024):
                if await request.is_disconnected():
                    return
                self.blocks += 1
                yield BLOCK

        return StreamingResponse(blocks(), media_type="application/json")


def test_endless_version_response_is_abandoned(tmp_path: Path) -> None:
    responder = EndlessResponder()
    with serve_with_head(
        tmp_path, HeadDouble(REF.session, overrides=[Route("/api/version", responder.respond)])
    ) as client:
        assert "data" in client.get(TASKS).json()
    assert responder.blocks < 100


def test_endless_sign_in_response_is_abandoned(tmp_path: Path) -> None:
    responder = EndlessResponder()
    route = Route(head_double.AUTHENTICATE, responder.respond, methods=["POST"])
    with serve_with_head(tmp_path, HeadDouble(REF.session, TOKEN, overrides=[route])) as client:
        response = client.post(LIVE + head_double.AUTHENTICATE, headers=bearer(TOKEN), json={})
        assert (response.status_code, "set-cookie" in response.headers) == (502, False)
    assert responder.blocks < 100


@pytest.mark.parametrize(
    "response",
    [
        Response(gzip.compress(JSONResponse(VERSION).body), headers={"Content-Encoding": "gzip"}),
        PlainTextResponse("[" * 100_000),
        JSONResponse(["no", "object"]),
    ],
    ids=["compressed", "deep", "list"],
)
def test_head_with_a_malformed_version_is_not_trusted(tmp_path: Path, response: Response) -> None:
    async def version(request: Request) -> Response:
        return response

    with serve_with_head(tmp_path, HeadDouble(REF.session, overrides=[Route("/api/version", version)])) as client:
        assert "data" in client.get(TASKS).json()


def test_head_of_another_session_is_not_requested_again_at_once(tmp_path: Path) -> None:
    head = HeadDouble("session_of_another_cluster")
    with serve_with_head(tmp_path, head) as client:
        for _ in range(5):
            assert "data" in client.get(TASKS).json()
    assert head.requests == ["GET /api/version"]


def test_names_reach_the_head_unchanged_and_never_as_other_paths(tmp_path: Path) -> None:
    async def node(request: Request) -> Response:
        return JSONResponse([request.path_params["node"], request.url.query])

    head = HeadDouble(REF.session, overrides=[Route("/nodes/{node}", node)])
    with serve_with_head(tmp_path, head) as client:
        assert client.get(f"{NODES}/a%3Fview=summary%23b%25c?x=1").json() == ["a?view=summary#b%c", "x=1"]
        before = len(head.requests)
        for name in ("%2e%2e", "%2e", "%2e%2e%2f%2e%2e%2fapi%2factors%2fkill"):
            client.get(f"{NODES}/{name}")
        assert head.requests[before:] == []


def test_headers_with_any_bytes_are_forwarded(tmp_path: Path) -> None:
    async def node(request: Request) -> Response:
        response = JSONResponse(request.headers["user-agent"])
        response.raw_headers.append((b"content-disposition", 'attachment; filename="日記.txt"'.encode()))
        return response

    head = HeadDouble(REF.session, overrides=[Route("/nodes/{node}", node)])
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server, httpx.Client(base_url=server, trust_env=False) as client:
            response = client.get(f"{NODES}/x", headers={b"User-Agent": b"caf\xe9"})
            assert response.json() == "café"
            assert 'attachment; filename="日記.txt"'.encode() in dict(response.headers.raw).values()


def test_accept_encoding_is_forwarded(tmp_path: Path) -> None:
    with serve_with_head(tmp_path, HeadDouble(REF.session)) as client:
        response = client.get(LIVE + head_double.ECHO, headers={"Accept-Encoding": "gzip"})
        assert response.json()["accept-encoding"] == "gzip"
        del client.headers["accept-encoding"]
        assert client.get(LIVE + head_double.ECHO).json()["accept-encoding"] == "identity"


def test_not_modified_is_forwarded(tmp_path: Path) -> None:
    async def node(request: Request) -> Response:
        is_current = request.headers.get("if-none-match") == '"1"'
        return Response(b"" if is_current else b"content", 304 if is_current else 200, {"ETag": '"1"'})

    head = HeadDouble(REF.session, overrides=[Route("/nodes/{node}", node)])
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server, httpx.Client(base_url=server, trust_env=False) as client:
            assert client.get(f"{NODES}/x").text == "content"
            response = client.get(f"{NODES}/x", headers={"If-None-Match": '"1"'})
            assert (response.status_code, response.headers["etag"], response.content) == (304, '"1"', b"")


def test_log_followers_do_not_block_other_requests(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server, ExitStack() as followers:
            client = followers.enter_context(httpx.Client(base_url=server, timeout=60, trust_env=False))
            streams = [client.stream("GET", LIVE + head_double.LOG_STREAM) for _ in range(20)]
            bodies = [followers.enter_context(stream).iter_raw() for stream in streams]
            assert {next(body) for body in bodies} == {b"first\n"}
            assert client.get(TASKS).json()["live"]


class FloodingHead:
    """A head that sends messages as fast as they are received."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = threading.Event()

    async def tail(self, reader: WebSocket) -> None:
        await reader.accept()
        try:
            while True:
                await reader.send_bytes(BLOCK * 12)
                self.sent += 1
        except WebSocketDisconnect:
            self.ended.set()

    def is_stalled(self) -> bool:
        """Return True if no message was received for a while."""
        before = self.sent
        return not self.ended.wait(2) and self.sent == before > 0


_UPGRADE = (
    f"GET {LIVE}/api/jobs/x/logs/tail HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
).encode()


def test_visitor_who_reads_nothing_fills_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disconnect in the middle of a message is no error."""
    flooding = FloodingHead()
    head = HeadDouble(REF.session, overrides=[WebSocketRoute("/api/jobs/{job}/logs/tail", flooding.tail)])
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server:
            with socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2]))) as visitor:
                visitor.sendall(_UPGRADE)
                eventually(flooding.is_stalled)
                assert flooding.sent < 14
                visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            eventually(flooding.ended.is_set)
    assert not [record for record in caplog.records if record.exc_info]
