"""Find the session that a request means, by its path or by KubeRay's cookies, and admit the visitor to it."""

from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory.errors import AccessError, NoSessionSelected, NotFound, RayHistoryError
from rayhistory.server import kuberay
from rayhistory.server.http.admission import admit
from rayhistory.server.http.auth_middleware import access_error_response
from rayhistory.server.http.error_responses import (
    api_error_response,
    error_headers,
    error_response,
    text_error_response,
)
from rayhistory.server.http.paths import is_frontend_file, is_history_api
from rayhistory.server.http.ray_proxy import came_through_ray, hide_not_found, is_ray_proxy_request
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.revocation import serve_while_admitted
from rayhistory.server.pages.home_page import home_page
from rayhistory.server.pages.message_page import error_page
from rayhistory.server.resolve import Selection, parse_session_path, selection_from_cookies


class SessionPathRouter:
    """Serve `/s/…`: parse the session from the path and pass the rest of the path to the session's routes."""

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        full_path = scope["path"]
        try:
            selection, rest = parse_session_path(full_path.removeprefix("/s/"))
            await admit(scope, selection)
        except AccessError as error:
            await access_error_response(HTTPConnection(scope), error)(scope, receive, send)
            return
        except RayHistoryError as error:
            accepts_html = scope["type"] == "http" and b"text/html" in dict(scope["headers"]).get(b"accept", b"")
            response = error_page(error) if accepts_html else error_response(full_path, error)
            await response(scope, receive, send)
            return
        if rest is None:
            await RedirectResponse(f"{full_path}/{query_suffix(scope)}", 307)(scope, receive, send)
            return
        rest = rest.lstrip("/")  # from clients that join an address with "/" at its end and a path with "/" in front
        if is_ray_proxy_request(HTTPConnection(scope)):
            send = hide_not_found("/" + rest, send)
        await serve_while_admitted(self._routes, _session_scope(scope, selection, full_path, rest), receive, send)


class SessionCookieRouter:
    """Serve all other paths for the session that KubeRay's cookies name."""

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, cookies = scope["path"], HTTPConnection(scope).cookies
        rest = path.lstrip("/")
        if rest.startswith("s/") and scope["type"] == "http":  # //s/… from clients that join with an extra slash
            await RedirectResponse(f"/{quote(rest)}{query_suffix(scope)}", 307)(scope, receive, send)
            return
        try:
            selection = selection_from_cookies(cookies)
            if selection is not None:
                await admit(scope, selection)
        except AccessError as error:
            await access_error_response(HTTPConnection(scope), error)(scope, receive, send)
            return
        except RayHistoryError as error:
            await error_response(path, error)(scope, receive, send)
            return
        if selection is None:
            is_home = path == "/" and scope["type"] == "http"
            response = await home_page(Request(scope)) if is_home else _no_session_response(path)
            await response(scope, receive, send)
            return
        renewed = kuberay.cookie_headers(cookies)

        async def send_with_cookies(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *renewed]}
            await send(message)

        through_ray = came_through_ray(HTTPConnection(scope))
        respond = hide_not_found(path, send_with_cookies) if through_ray else send_with_cookies
        await serve_while_admitted(self._routes, _session_scope(scope, selection, path, rest), receive, respond)


def query_suffix(scope: Scope) -> str:
    """Return the query string with its question mark, for a redirect to another path."""
    query = scope["query_string"].decode("latin-1")
    return f"?{query}" if query else ""


def _no_session_response(path: str) -> Response:
    if is_frontend_file(path):
        return text_error_response(NotFound("404: Not Found"))
    hint = "choose a session with /enter_cluster/{namespace}/{kind}/{name}, or use its address /s/…"
    error = NoSessionSelected(f"no session is selected: {hint}")
    if is_history_api(path):
        return api_error_response(error)
    return json_response(f"Cluster Cookie not found: {hint}", error.http_status, error_headers(error))


def _session_scope(scope: Scope, selection: Selection, full_path: str, rest: str) -> Scope:
    return {
        **scope,
        "path": "/" + rest,
        "raw_path": ("/" + rest).encode(),
        "root_path": "",
        "rayhistory.selection": selection,
        "rayhistory.full_path": full_path,
    }


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a path that no route has."""
    path = scope["path"]
    if is_history_api(path):
        response = api_error_response(NotFound(f"no such path: {path}"))
    else:
        response = text_error_response(NotFound("404: Not Found"))
    await response(scope, receive, send)
