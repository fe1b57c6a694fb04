"""Route requests of live sessions to the head of their cluster."""

from collections.abc import Iterable

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from rayhistory.access.visitor import cookie_header
from rayhistory.errors import NotFound, NotSignedIn, RayHistoryError, UsageError
from rayhistory.server.frontend import NOT_INSTALLED, VERSION_PARAM, Frontends, index_page
from rayhistory.server.http.admission import admission_of
from rayhistory.server.http.error_responses import text_error_response
from rayhistory.server.http.paths import AUTHENTICATE, AUTHENTICATION_MODE, HISTORY_API
from rayhistory.server.http.ray_proxy import is_kuberay_request
from rayhistory.server.http.responses import json_response
from rayhistory.server.live_sessions import Head, LiveSessions, head_token_cookie, live_of
from rayhistory.server.logs.kuberay_logs import LOG_FILE, check_log_parameters
from rayhistory.server.routing.auth_middleware import TOKENS_DISABLED

_RAY_PREFIXES = ("/api/", "/nodes", "/logical/", "/events", "/timezone", "/usage_stats_enabled")
_HEALTH = ("/api/grafana_health", "/api/prometheus_health")
_SERVED_HERE = (HISTORY_API, *_HEALTH, "/api/profiling_enabled")
"""Paths that are not sent to a head. Profiling is one of them, because it interrupts a worker.

On KubeRay's cookie routes, health paths are sent to the head, as in KubeRay.
"""


class LiveRouter:
    """Serve Ray's API from the head while the cluster is live. Serve all other paths from the store."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], frontends: Frontends) -> None:
        self.app = app
        self._ray_routes = [
            route
            for route in routes
            if isinstance(route, Route | WebSocketRoute)
            and route.path.startswith(_RAY_PREFIXES)
            and not route.path.startswith(_SERVED_HERE)
        ]
        self._frontends = frontends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, path = HTTPConnection(scope), scope["path"]
        live, selection = live_of(connection), scope["rayhistory.selection"]
        try:
            head = await live.head(selection, live.head_token(connection, selection))
        except NotSignedIn as error:
            await text_error_response(error)(scope, receive, send)
            return
        except RayHistoryError:
            head = None  # the session's routes report store errors in the right shape
        if path in (AUTHENTICATE, AUTHENTICATION_MODE):
            await self._sign_in(head, live, scope, receive, send)
        elif head is None or live.proxy is None:
            await self.app(scope, receive, send)
        elif path == "/" and scope["type"] == "http":
            await self._document(head, connection)(scope, receive, send)
        elif not self._is_ray_route(scope):
            await self.app(scope, receive, send)
        elif invalid := _invalid_log_request(connection):
            await text_error_response(invalid)(scope, receive, send)
        elif scope["type"] == "websocket":
            await live.proxy.websocket(head.address, path, head.token, WebSocket(scope, receive, send))
        else:
            await live.proxy.http(head.address, path, head.token, scope=scope, receive=receive, send=send)

    def _is_ray_route(self, scope: Scope) -> bool:
        """Return whether a path is one of Ray's routes, without dot segments that a head could resolve."""
        has_dot_segments = bool({".", ".."} & {*scope["path"].split("/")})
        if scope["type"] == "http" and scope["path"] in _HEALTH and scope["rayhistory.selection"].from_cookies:
            return True
        return not has_dot_segments and any(route.matches(scope)[0] is Match.FULL for route in self._ray_routes)

    def _document(self, head: Head, connection: HTTPConnection) -> Response:
        try:
            chosen = self._frontends.choose(head.ray_version, connection.query_params.get(VERSION_PARAM))
        except RayHistoryError as error:
            return text_error_response(error)
        return index_page(chosen, {}) if chosen else text_error_response(NotFound(NOT_INSTALLED))

    async def _sign_in(self, head: Head | None, live: LiveSessions, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve Ray's sign-in for a cluster with its own tokens. The cookie is limited to this session's path."""
        response: Response
        connection, path = HTTPConnection(scope), scope["path"]
        if path == AUTHENTICATION_MODE:
            if head and live.proxy:
                await live.proxy.http(head.address, path, "", scope=scope, receive=receive, send=send)
                return
            response = json_response({"authentication_mode": "disabled"})
        elif head is None or live.proxy is None or scope.get("method") != "POST":
            response = text_error_response(NotSignedIn(TOKENS_DISABLED))
        else:
            response = await live.proxy.sign_in(head.address, head.token)
            session_path = scope["rayhistory.full_path"].removesuffix(AUTHENTICATE.lstrip("/"))
            if response.status_code == 200 and not scope["rayhistory.selection"].from_cookies:
                secure = admission_of(connection).proxies.is_secure(connection)
                name = head_token_cookie(connection)
                response.raw_headers.append(cookie_header(head.token, secure=secure, path=session_path, name=name))
        await response(scope, receive, send)


def _invalid_log_request(connection: HTTPConnection) -> UsageError | None:
    """Return the error of a log request that KubeRay refuses without sending it to the head."""
    if connection.scope["path"] == LOG_FILE and is_kuberay_request(connection):
        try:
            check_log_parameters(connection.query_params)
        except UsageError as error:
            return error
    return None
