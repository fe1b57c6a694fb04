"""Authentication middleware, and Ray's sign-in protocol (`/api/authentication_mode`, `/api/authenticate`)."""

from urllib.parse import parse_qs, quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rayhistory.access import Visitor
from rayhistory.access.visitor import bearer, cookie_header
from rayhistory.errors import AccessError, MethodNotAllowed, NotFound, NotSignedIn
from rayhistory.server.http.admission import TOKEN_HEADERS, VISITOR_KEY, Admission, admission_of
from rayhistory.server.http.error_responses import api_error_response, text_error_response
from rayhistory.server.http.message_page import error_page
from rayhistory.server.http.paths import (
    AUTHENTICATE,
    AUTHENTICATION_MODE,
    LOGIN,
    LOGOUT,
    PUBLIC,
    is_frontend_file,
    is_history_api,
)
from rayhistory.server.http.responses import json_response
from rayhistory.server.pages.login_page import login_page, login_result_page

TOKENS_DISABLED = "Unauthorized: Token authentication is not enabled"
"""Error message, copied from Ray."""
_MAX_FORM_BYTES = 64 << 10
_LIVE_SESSION = "/live/"


class AuthMiddleware:
    """Identify the visitor of every request that is not public, and serve sign-in and sign-out.

    Both Ray's dialog and our login page sign in here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection, path = HTTPConnection(scope), scope["path"]
        admission = admission_of(connection)
        response: Response | None = None
        if scope["type"] == "http" and (visitor := await _visitor_for_head(admission, connection)):
            scope = {**scope, VISITOR_KEY: visitor}
        elif scope["type"] == "http" and path.endswith(AUTHENTICATION_MODE):
            response = _authentication_mode(admission)
        elif scope["type"] == "http" and path.endswith(AUTHENTICATE):
            response = await _authenticate(admission, Request(scope, receive))
        elif path == LOGOUT:
            response = _sign_out(admission, connection)
        elif path == LOGIN:
            response = await login_page(admission, connection)
        elif not path.startswith(PUBLIC):
            try:
                visitor = await admission.identify(connection)
                admission.limit_expensive_calls(connection, visitor)
                scope = {**scope, VISITOR_KEY: visitor}
            except AccessError as error:
                response = access_error_response(connection, error)
        await (response or self._app)(scope, receive, send)


def access_error_response(connection: HTTPConnection, error: AccessError) -> Response:
    """Report an access error in the shape that the client expects.

    Browsers without a token are sent to the login page.
    """
    scope, path = connection.scope, connection.scope["path"]
    if is_frontend_file(path):
        return text_error_response(NotFound("404: Not Found"))  # a Ray dashboard in front of us has it itself
    if is_history_api(path):
        return api_error_response(error)
    if scope["type"] == "http" and "text/html" in connection.headers.get("accept", ""):
        if isinstance(error, NotSignedIn) and admission_of(connection).access.takes_tokens:
            query = scope["query_string"].decode("latin-1")
            return RedirectResponse(f"{LOGIN}?next={quote(path + (f'?{query}' if query else ''), safe='')}", 303)
        return error_page(error)
    return text_error_response(error)


async def _visitor_for_head(admission: Admission, connection: HTTPConnection) -> Visitor | None:
    """Identify a visitor who signs in at a live cluster.

    The token in the request is for the cluster's head, not for this server.
    """
    path = connection.scope["path"]
    for_head = _LIVE_SESSION in path and path.endswith((AUTHENTICATION_MODE, AUTHENTICATE))
    if not for_head or connection.app.state.live.proxy is None:
        return None
    if path.endswith(AUTHENTICATION_MODE) and admission.access.takes_tokens:
        return None
    try:
        return await admission.identify(_replace_headers(connection, TOKEN_HEADERS))
    except AccessError:
        return None


def _replace_headers(
    connection: HTTPConnection, dropped: tuple[bytes, ...], *added: tuple[bytes, bytes]
) -> HTTPConnection:
    headers = [(name, value) for name, value in connection.scope["headers"] if name not in dropped]
    return HTTPConnection({**connection.scope, "headers": [*headers, *added]})


def _authentication_mode(admission: Admission) -> Response:
    """Tell Ray's frontend whether to show its token dialog on 401 and 403."""
    return json_response({"authentication_mode": "token" if admission.access.takes_tokens else "disabled"})


async def _authenticate(admission: Admission, request: Request) -> Response:
    """Check a token and store it in a cookie. Ray's dialog sends it as a header, our login page as a form."""
    if request.method != "POST":
        return text_error_response(MethodNotAllowed("use POST"))
    if not admission.access.takes_tokens:
        return text_error_response(NotSignedIn(TOKENS_DISABLED))
    form = await _read_form(request) if "authorization" not in request.headers else {}
    next_path = form.get("next", "")
    try:
        token = form["token"].strip() if "token" in form else bearer(request.headers.get("authorization", ""))
        visitor = await admission.identify(_with_token(request, token))
    except AccessError as error:
        return login_result_page(next_path, error=error) if form else access_error_response(request, error)
    admission.audit.signed_in(visitor, admission.proxies.client_address(request))
    if form:
        # A page, not a redirect: a Ray dashboard in front of us would follow a redirect itself.
        response = login_result_page(next_path, signed_in=visitor.name)
    else:
        response = json_response({"status": "authenticated", "message": "Token is valid"})
    response.raw_headers.append(cookie_header(token, secure=admission.proxies.is_secure(request)))
    return response


def _with_token(request: Request, token: str) -> HTTPConnection:
    """Return a copy of the request with this token and no other one."""
    header = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return _replace_headers(request, (*TOKEN_HEADERS, b"cookie"), *header)


async def _read_form(request: Request) -> dict[str, str]:
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > _MAX_FORM_BYTES:
            return {}
    fields = parse_qs(body.decode("utf-8", "replace"))
    return {name: values[-1] for name, values in fields.items() if name in ("token", "next")}


def _sign_out(admission: Admission, connection: HTTPConnection) -> Response:
    response = RedirectResponse(LOGIN, 303)
    if connection.scope.get("method") == "POST":
        response.raw_headers.append(cookie_header("", secure=admission.proxies.is_secure(connection)))
    return response
