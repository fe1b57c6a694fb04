"""Find the session of a request, by its path or by KubeRay's cookies, and admit the visitor to it."""

import re
from urllib.parse import quote, urlencode

from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayhistory.errors import AccessError, NoSessionSelected, NotFound, RayHistoryError
from rayhistory.server import kuberay
from rayhistory.server.history_api.visible_sessions import load_session_page
from rayhistory.server.http.admission import admit
from rayhistory.server.http.error_responses import (
    api_error_response,
    error_headers,
    error_response,
    ray_error_response,
    text_error_response,
)
from rayhistory.server.http.message_page import error_page
from rayhistory.server.http.paths import is_frontend_file, is_history_api
from rayhistory.server.http.ray_proxy import came_through_ray, hide_not_found, is_ray_proxy_request
from rayhistory.server.http.responses import json_response
from rayhistory.server.pages.home_page import home_page
from rayhistory.server.ray_api.jobs import VERSION_PATHS, version_without_session
from rayhistory.server.routing.auth_middleware import access_error_response
from rayhistory.server.routing.revocation import serve_while_admitted
from rayhistory.sessions.selection import Selection, parse_session_path, selection_from_cookies
from rayhistory.web import STATIC_DIR

_KUBERAYS_ERROR = "Cluster Cookie not found"
_RAY_API, _STATE_API = "/api/", "/api/v0/"
_CLUSTER_PATH = re.compile(r"/s/(?P<namespace>[a-z0-9.-]+)/(?P<cluster>[a-z0-9.-]+)/?")
"""Path of a cluster without a session, which shows the list of its sessions."""
_MAX_LISTED_SESSIONS = 5
_MAX_SHOWN_PATH = 200


class SessionPathRouter:
    """Serve `/s/…`: parse the session from the path and pass the rest of the path to the session's routes."""

    def __init__(self, routes: ASGIApp) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        full_path = scope["path"]
        if scope["type"] == "http" and (cluster := _CLUSTER_PATH.fullmatch(full_path)):
            await RedirectResponse(f"/home?{urlencode(cluster.groupdict())}", 307)(scope, receive, send)
            return
        try:
            selection, rest = parse_session_path(full_path.removeprefix("/s/"))
            await admit(scope, selection)
        except AccessError as error:
            await access_error_response(HTTPConnection(scope), error)(scope, receive, send)
            return
        except RayHistoryError as error:
            is_page = scope["type"] == "http" and accepts_html(scope)
            response = error_page(error) if is_page else error_response(full_path, error)
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
    """Serve all other paths for the session in KubeRay's cookies."""

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
            await (await _no_session_response(scope))(scope, receive, send)
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


async def _no_session_response(scope: Scope) -> Response:
    """Respond to a path that needs a session but has none."""
    path, is_http = scope["path"], scope["type"] == "http"
    if path == "/" and is_http:
        return await home_page(Request(scope))
    if path == "/favicon.ico" and not came_through_ray(HTTPConnection(scope)):
        return FileResponse(STATIC_DIR / "history.svg", media_type="image/svg+xml")
    if is_frontend_file(path):
        return text_error_response(NotFound("404: Not Found"))
    hint = "choose a session with /enter_cluster/{namespace}/{kind}/{name}, or use its address /s/…"
    error = NoSessionSelected(f"no session is selected: {hint}")
    if is_history_api(path):
        return api_error_response(error)
    if is_http and path in VERSION_PATHS:
        return version_without_session()
    if is_http and path.startswith(_RAY_API):
        return await _ray_api_error(Request(scope))
    if is_http and accepts_html(scope):
        return error_page(NotFound(f"this server has no page {path[:_MAX_SHOWN_PATH]}"))
    return _cookie_error(error)


def _cookie_error(error: NoSessionSelected) -> Response:
    """Report an error in the shape and with the words of KubeRay's history server.

    KubeRay's message comes last, because Ray's commands print the whole text, also for users without cookies.
    """
    return json_response(f"{error} ({_KUBERAYS_ERROR})", error.http_status, error_headers(error))


async def _ray_api_error(request: Request) -> Response:
    """Tell the user of `ray list` or `ray job` which addresses exist, in Ray's shape."""
    try:
        error = NoSessionSelected(await _addresses_of_sessions(request))
    except RayHistoryError as failure:
        return ray_error_response(failure)
    return ray_error_response(error) if request.url.path.startswith(_STATE_API) else _cookie_error(error)


async def _addresses_of_sessions(request: Request) -> str:
    page = await load_session_page(Request({**request.scope, "query_string": b""}))
    server = f"{request.url.scheme}://{request.url.netloc}"
    urls = [f"{server}{row.url.rstrip('/')}" for row in page.sessions[:_MAX_LISTED_SESSIONS]]
    more = f" and {page.total - len(urls):,} more (see {server}/home)" if page.total > len(urls) else ""
    listed = f"{', '.join(urls)}{more}" if urls else "the server has none yet"
    return f"{server} is a history server: use the address of a session: {listed}"


def accepts_html(scope: Scope) -> bool:
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")


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
    """Respond to a path without a route."""
    path = scope["path"]
    if is_history_api(path):
        response = api_error_response(NotFound(f"no such path: {path}"))
    elif scope["type"] == "http" and accepts_html(scope) and not path.startswith(("/api/", "/static/")):
        response = error_page(NotFound(f"there is no page {path[:_MAX_SHOWN_PATH]}"), scope)
    else:
        response = text_error_response(NotFound("404: Not Found"))
    await response(scope, receive, send)
