"""A double of a head's dashboard that can hang, send endless responses, redirect and send scripts."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

BLOCK = b"x" * (1 << 20)
SLOW, ENDLESS, REDIRECT, SCRIPT, ECHO = "/nodes", "/api/v0/logs/file", "/timezone", "/api/cluster_status", "/events"
LOG_STREAM, AUTHENTICATE = "/api/v0/logs/stream", "/api/authenticate"
COOKIE = "ray-authentication-token"


class HeadDouble:
    """A head; `overrides` are routes that replace its own."""

    def __init__(self, session: str, token: str = "", overrides: Iterable[BaseRoute] = ()) -> None:
        self.session = session
        self.token = token
        self.overrides = overrides
        self.requests: list[str] = []
        self.disconnects = 0

    async def version(self, request: Request) -> Response:
        return JSONResponse({"ray_version": "2.60.0", "session_name": self.session})

    async def authenticate(self, request: Request) -> Response:
        """Store the token in a cookie, as Ray does."""
        if not self.token:
            return PlainTextResponse("Unauthorized: Token authentication is not enabled", 401)
        if denied := self._check(request.headers.get("authorization")):
            return denied
        response = JSONResponse({"status": "authenticated", "message": "Token is valid"})
        response.set_cookie(COOKIE, self.token, max_age=2592000, httponly=True, samesite="strict")
        return response

    async def tasks(self, request: Request) -> Response:
        return JSONResponse(
            {"live": True, "query": request.url.query}, headers={"Set-Cookie": "evil=1", "X-Unexpected": "1"}
        )

    async def echo(self, request: Request) -> Response:
        return JSONResponse(dict(request.headers))

    async def hang(self, request: Request) -> Response:
        while not await request.is_disconnected():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.disconnects += 1
        return PlainTextResponse("too late")

    async def endless(self, request: Request) -> Response:
        async def blocks() -> AsyncIterator[bytes]:
            for _ in range(1024):
                yield BLOCK

        return StreamingResponse(blocks(), media_type="text/plain")

    async def follow(self, request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            try:
                yield b"first\n"
                await asyncio.sleep(600)
            finally:
                self.disconnects += 1

        return StreamingResponse(lines(), media_type="text/plain")

    async def redirect(self, request: Request) -> Response:
        return RedirectResponse("http://169.254.169.254/latest/meta-data/", 302)

    async def script(self, request: Request) -> Response:
        return HTMLResponse("<script>alert(1)</script>")

    async def kill(self, request: Request) -> Response:
        return PlainTextResponse("killed")

    async def mode(self, request: Request) -> Response:
        return JSONResponse({"authentication_mode": "token" if self.token else "disabled"})

    async def tail(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("one\n")
        await socket.send_text(f"for {socket.headers.get('x-ray-authorization')}\n")
        if "endless" in socket.path_params["job"]:
            try:
                while (await socket.receive())["type"] != "websocket.disconnect":
                    pass
            except WebSocketDisconnect:
                pass
            self.disconnects += 1
            return
        await socket.close()

    def app(self, prefix: str = "") -> ASGIApp:
        routes = [
            *self.overrides, Route("/api/version", self.version), Route("/api/v0/tasks", self.tasks),
            Route(ECHO, self.echo), Route(SLOW, self.hang), Route(ENDLESS, self.endless),
            Route(LOG_STREAM, self.follow), Route(REDIRECT, self.redirect), Route(SCRIPT, self.script),
            Route("/api/actors/kill", self.kill),
            Route("/api/authentication_mode", self.mode),
            Route(AUTHENTICATE, self.authenticate, methods=["POST"]),
            WebSocketRoute("/api/jobs/{job}/logs/tail", self.tail),
        ]  # fmt: skip
        inner = Starlette(routes=[Mount(prefix, routes=routes)] if prefix else routes)

        async def authenticated(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self.requests.append(f"{scope['method']} {scope['path'].removeprefix(prefix)}")
                if denied := self._check_request(Request(scope)):
                    await denied(scope, receive, send)
                    return
            await inner(scope, receive, send)

        return authenticated

    def _check_request(self, request: Request) -> Response | None:
        """Look for the token where Ray does."""
        if not self.token or request.url.path.endswith(("/api/authentication_mode", AUTHENTICATE)):
            return None
        cookie = request.cookies.get(COOKIE)
        header = request.headers.get("authorization") or request.headers.get("x-ray-authorization")
        return self._check(header or (f"Bearer {cookie}" if cookie else None))

    def _check(self, authorization: str | None) -> Response | None:
        if not authorization:
            return PlainTextResponse("Unauthorized: Missing authentication token", 401)
        if authorization != f"Bearer {self.token}":
            return PlainTextResponse("Forbidden: Invalid authentication token", 403)
        return None
