"""A visitor with rights to one namespace, who sends any request."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import websockets.exceptions
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket
from websockets.sync.client import connect

from rayhistory.errors import StoreUnavailable
from rayhistory.server.app import create_app
from rayhistory.server.routing import revocation
from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import ObjectInfo
from support import head_double, live_server
from support.head_double import HeadDouble
from support.kubernetes_double import run_app
from support.recorded_sample import REF, settings_for
from support.two_namespaces import (
    ALLOWED_TOKEN,
    DOTTED,
    UNKNOWN_TOKEN,
    bearer,
    cookie_header_for,
    fill_path,
    kuberay_cookies,
    serve_two_namespaces,
    server_routes,
    session_routes,
    write_access_file,
)

VERSION = f"{REF.url}api/version"
ENDLESS_JOB = "/api/jobs/endless/logs/tail"


def test_no_route_leaves_its_session_with_or_without_a_slash(tmp_path: Path) -> None:
    """A redirect to a path outside of the session would be served from the session of the cookies."""
    session = DOTTED.url.rstrip("/")
    headers = {**cookie_header_for(kuberay_cookies(REF)), "Host": "evil.example"}
    with serve_two_namespaces(tmp_path) as client:
        assert client.get(f"{REF.url}api/v0/nodes", headers=headers).json()["data"]["result"]["total"] > 0
        paths = {fill_path(route.path).rstrip("/") for route in session_routes(client.app)}
        assert len(paths) > 40
        for path in sorted(paths):
            for url in (session + path, f"{session}{path}/"):
                response = client.get(url, headers=headers)
                location = response.headers.get("location", "")
                assert not location or location.startswith(f"{session}/"), (url, location)
        for path in (fill_path(route.path).rstrip("/") for route in server_routes(client.app)):
            for url in (path or "/", f"{path}/", f"/{path}/"):
                assert "evil.example" not in client.get(url, headers=headers).headers.get("location", ""), url


def test_trailing_slash_is_not_served_from_the_session_of_the_cookies(tmp_path: Path) -> None:
    headers = cookie_header_for(kuberay_cookies(REF))
    with serve_two_namespaces(tmp_path) as client:
        for path in ("api/v0/nodes/", "nodes/", "timezone/", "api/history/gaps/", "logical/actors/x/"):
            response = client.get(DOTTED.url + path, headers=headers, follow_redirects=True)
            assert response.status_code == 404, path
            assert str(response.url).endswith(DOTTED.url + path)


def test_invalid_tokens_lock_nobody_else_out(tmp_path: Path) -> None:
    """Behind an ingress that is not in --trusted-proxies, all visitors have its address."""
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        statuses = [client.get(VERSION, headers=bearer(f"{UNKNOWN_TOKEN}-{n}")).status_code for n in range(40)]
        assert (statuses[0], statuses[-1]) == (403, 429)
        assert client.get(VERSION, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        signed_in = client.post("/api/authenticate", headers=bearer(ALLOWED_TOKEN), json={})
        assert (signed_in.status_code, "set-cookie" in signed_in.headers) == (200, True)


def test_public_readiness_does_not_show_the_error_of_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "s3.internal:9000/secret-bucket: InvalidAccessKeyId AKIA123"

    class UnavailableStore(LocalStore):
        def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            raise StoreUnavailable(reason)

    with TestClient(create_app(settings_for(tmp_path), UnavailableStore(tmp_path / "store"))) as client:
        for path in ("/readyz", "/readz"):
            response = client.get(path)
            assert (response.status_code, response.text) == (503, "the object store cannot be listed")
            assert response.headers["x-rayhistory-error"] == "store_unavailable"
    assert reason in [record.__dict__.get("reason") for record in caplog.records]


class EndlessHead(HeadDouble):
    """A head whose log stream and job output never end. It sends a line after each pause."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        routes = [Route(head_double.LOG_STREAM, self.lines), WebSocketRoute(ENDLESS_JOB, self.messages)]
        super().__init__(live_server.REF.session, overrides=routes)

    async def lines(self, request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                yield b"line\n"
                await asyncio.sleep(self._pause_s)

        return StreamingResponse(lines(), media_type="text/plain")

    async def messages(self, socket: WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.send_text("line\n")
            await asyncio.sleep(self._pause_s)


@pytest.mark.parametrize("pause_s", [0.02, 3600.0], ids=["busy", "quiet"])
@pytest.mark.parametrize("rules", ["", f"token ada {ALLOWED_TOKEN} other\n"], ids=["token", "namespace"])
def test_streams_and_websockets_end_when_access_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: str, pause_s: float
) -> None:
    monkeypatch.setattr(revocation, "_RECHECK_INTERVAL_S", 0.05)
    access_file = write_access_file(tmp_path)
    with run_app(EndlessHead(pause_s).app()) as head:
        live_server.register_head(tmp_path, head)
        with live_server.run_live_server(tmp_path, auth="token", access_file=access_file) as server:
            live = server + live_server.LIVE
            socket_url = "ws" + live.removeprefix("http") + ENDLESS_JOB
            with (
                httpx.stream(
                    "GET", live + head_double.LOG_STREAM, headers=bearer(ALLOWED_TOKEN), trust_env=False, timeout=30
                ) as stream,
                connect(socket_url, additional_headers=bearer(ALLOWED_TOKEN), proxy=None) as socket,
            ):
                lines = stream.iter_raw()
                assert next(lines).startswith(b"line\n")
                assert socket.recv(30) == "line\n"
                write_access_file(tmp_path, rules)
                with pytest.raises(httpx.RemoteProtocolError):
                    list(lines)
                with pytest.raises(websockets.exceptions.ConnectionClosedError) as closed:
                    while True:
                        socket.recv(30)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
