"""Heads that say too much, too strangely or nothing at all, and visitors who ask them for what they should not."""

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

import head_double
from beside_head import LIVE, REF, TASKS, TOKEN, beside, eventually, register, served
from guarded import bearer
from head_double import BLOCK, HeadDouble
from kubernetes_double import running

SAYS_WHO_IT_IS = {"ray_version": "2.60.0", "session_name": REF.session}
NODES = f"{LIVE}/nodes"


class Talker:
    """Answers a small question with a GB, and knows how much of it was read."""

    def __init__(self) -> None:
        self.blocks = 0

    async def answer(self, request: Request) -> Response:
        async def blocks() -> AsyncIterator[bytes]:
            for _ in range(1024):
                if await request.is_disconnected():
                    return
                self.blocks += 1
                yield BLOCK

        return StreamingResponse(blocks(), media_type="application/json")


def test_of_an_endless_answer_to_a_small_question_little_is_read(tmp_path: Path) -> None:
    talker = Talker()
    with beside(tmp_path, HeadDouble(REF.session, instead=[Route("/api/version", talker.answer)])) as client:
        assert "data" in client.get(TASKS).json()
    assert talker.blocks < 100


def test_of_an_endless_answer_to_a_token_little_is_read(tmp_path: Path) -> None:
    talker = Talker()
    route = Route(head_double.AUTHENTICATE, talker.answer, methods=["POST"])
    with beside(tmp_path, HeadDouble(REF.session, TOKEN, instead=[route])) as client:
        answer = client.post(LIVE + head_double.AUTHENTICATE, headers=bearer(TOKEN), json={})
        assert (answer.status_code, "set-cookie" in answer.headers) == (502, False)
    assert talker.blocks < 100


@pytest.mark.parametrize(
    "answer",
    [
        Response(gzip.compress(JSONResponse(SAYS_WHO_IT_IS).body), headers={"Content-Encoding": "gzip"}),
        PlainTextResponse("[" * 100_000),
        JSONResponse(["no", "object"]),
    ],
    ids=["packed", "deep", "list"],
)
def test_a_head_that_does_not_simply_say_who_it_is_is_not_believed(tmp_path: Path, answer: Response) -> None:
    async def version(request: Request) -> Response:
        return answer

    with beside(tmp_path, HeadDouble(REF.session, instead=[Route("/api/version", version)])) as client:
        assert "data" in client.get(TASKS).json()


def test_a_head_that_was_asked_in_vain_is_left_alone_for_a_while(tmp_path: Path) -> None:
    head = HeadDouble("session_of_somebody_else")
    with beside(tmp_path, head) as client:
        for _ in range(5):
            assert "data" in client.get(TASKS).json()
    assert head.asked == ["GET /api/version"]


def test_names_reach_the_head_as_they_are_and_never_as_other_paths(tmp_path: Path) -> None:
    async def node(request: Request) -> Response:
        return JSONResponse([request.path_params["node"], request.url.query])

    head = HeadDouble(REF.session, instead=[Route("/nodes/{node}", node)])
    with beside(tmp_path, head) as client:
        assert client.get(f"{NODES}/a%3Fview=summary%23b%25c?x=1").json() == ["a?view=summary#b%c", "x=1"]
        before = len(head.asked)
        for name in ("%2e%2e", "%2e", "%2e%2e%2f%2e%2e%2fapi%2factors%2fkill"):
            client.get(f"{NODES}/{name}")
        assert head.asked[before:] == []


def test_headers_of_any_bytes_pass_both_ways(tmp_path: Path) -> None:
    async def node(request: Request) -> Response:
        answer = JSONResponse(request.headers["user-agent"])
        answer.raw_headers.append((b"content-disposition", 'attachment; filename="日記.txt"'.encode()))
        return answer

    head = HeadDouble(REF.session, instead=[Route("/nodes/{node}", node)])
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours, httpx.Client(base_url=ours, trust_env=False) as client:
            answer = client.get(f"{NODES}/x", headers={"User-Agent": b"caf\xe9"})
            assert answer.json() == "café"
            assert 'attachment; filename="日記.txt"'.encode() in dict(answer.headers.raw).values()


def test_only_who_reads_gzip_gets_it(tmp_path: Path) -> None:
    with beside(tmp_path, HeadDouble(REF.session)) as client:
        got = client.get(LIVE + head_double.ECHO, headers={"Accept-Encoding": "gzip"})
        assert got.json()["accept-encoding"] == "gzip"
        del client.headers["accept-encoding"]
        assert client.get(LIVE + head_double.ECHO).json()["accept-encoding"] == "identity"


def test_what_has_not_changed_is_said_to_have_not(tmp_path: Path) -> None:
    async def node(request: Request) -> Response:
        known = request.headers.get("if-none-match") == '"1"'
        return Response(b"" if known else b"content", 304 if known else 200, {"ETag": '"1"'})

    head = HeadDouble(REF.session, instead=[Route("/nodes/{node}", node)])
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours, httpx.Client(base_url=ours, trust_env=False) as client:
            assert client.get(f"{NODES}/x").text == "content"
            answer = client.get(f"{NODES}/x", headers={"If-None-Match": '"1"'})
            assert (answer.status_code, answer.headers["etag"], answer.content) == (304, '"1"', b"")


def test_who_follows_logs_does_not_keep_others_from_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours, ExitStack() as followers:
            client = followers.enter_context(httpx.Client(base_url=ours, timeout=60, trust_env=False))
            ask = [client.stream("GET", LIVE + head_double.FOLLOWED) for _ in range(20)]
            followed = [followers.enter_context(stream).iter_raw() for stream in ask]
            assert {next(blocks) for blocks in followed} == {b"first\n"}
            assert client.get(TASKS).json()["live"]


class Sender:
    """A head that sends as much as is taken."""

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

    def stands(self) -> bool:
        """Whether nobody takes more, as far as can be told."""
        before = self.sent
        return not self.ended.wait(2) and self.sent == before > 0


_UPGRADE = (
    f"GET {LIVE}/api/jobs/x/logs/tail HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
).encode()


def test_for_a_visitor_who_reads_nothing_little_is_held(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And when the visitor has left, in the middle of a message, nothing is wrong."""
    sender = Sender()
    head = HeadDouble(REF.session, instead=[WebSocketRoute("/api/jobs/{job}/logs/tail", sender.tail)])
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours:
            with socket.create_connection(("127.0.0.1", int(ours.rpartition(":")[2]))) as visitor:
                visitor.sendall(_UPGRADE)
                eventually(sender.stands)
                assert sender.sent < 14
                visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            eventually(sender.ended.is_set)
    assert not [record for record in caplog.records if record.exc_info]
