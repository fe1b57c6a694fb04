"""Middleware for every request: metrics, errors, and the read-only rule. Authentication has its own module."""

import logging
import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory.errors import ERROR_HEADER, MethodNotAllowed, RayHistoryError, disk_full_error
from rayhistory.server.http.error_responses import code_of_status, plain_error_response
from rayhistory.server.http.paths import AUTHENTICATE, LOGOUT, MCP, SQL_API, is_prometheus_form

log = logging.getLogger(__name__)


class ReadOnlyMiddleware:
    """Refuse all methods except GET and HEAD. Sign-in, sign-out, PromQL, SQL and MCP also take POST."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"} and not _takes_post(scope):
            error = MethodNotAllowed(f"{scope['method']} is not allowed: the history server is read-only")
            response = plain_error_response(scope["path"], error)
            response.headers["Allow"] = "GET, HEAD"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _takes_post(scope: Scope) -> bool:
    """Return whether a request is a POST that is allowed, although the server is read-only.

    No allowed POST changes the store. HostMiddleware has already checked the Origin header.
    """
    path: str = scope["path"]
    if scope["method"] != "POST":
        return False
    if path == MCP or path.endswith(SQL_API):
        return _content_type(scope) == "application/json"  # a form of another site cannot send it
    if is_prometheus_form(path):
        return _content_type(scope) == "application/x-www-form-urlencoded"
    return path == LOGOUT or path.endswith(AUTHENTICATE)


def _content_type(scope: Scope) -> str:
    return Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()


class ErrorMiddleware:
    """Turn unhandled exceptions into 500, then re-raise so that uvicorn logs them; give every error response a code.

    A full disk gets its own error instead of 500, because any request may need a file.

    It runs inside of MetricsMiddleware and SecurityHeadersMiddleware, so that both see these responses.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_with_code(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] in ("http.response.start", "websocket.http.response.start") and message["status"] >= 400:
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers.setdefault(ERROR_HEADER, code_of_status(message["status"]))
                message = {**message, "headers": headers.raw}
            await send(message)

        try:
            await self._app(scope, receive, send_with_code)
        except Exception as error:
            full = disk_full_error(error) if isinstance(error, OSError) else None
            if scope["type"] == "http" and not started:
                shown = full or RayHistoryError("Internal Server Error")
                await plain_error_response(scope["path"], shown)(scope, receive, send_with_code)
                if full:
                    log.warning("disk is full, requests that need a file fail", extra={"reason": str(error)})
                    return
            raise


class RequestMetrics:
    """Prometheus metrics of this server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("rayhistory_requests", "HTTP requests by status", ["status"], registry=self.registry)
        self.notifications = Counter(
            "rayhistory_notifications", "Attempts to send notifications by outcome", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram("rayhistory_request_seconds", "HTTP request duration", registry=self.registry)


class MetricsMiddleware:
    """Count responses by status and measure the time until they start."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(message["status"]).inc()
                self._metrics.seconds.observe(time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, send_counted)
