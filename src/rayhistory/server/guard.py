"""The one place where it is decided who sees what: every request passes the door, every session is asked about by its
namespace, and every list is cut to what may be opened.
"""

import asyncio
import hashlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol, TypeVar
from urllib.parse import parse_qs, quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rayhistory import __version__, web
from rayhistory.access import Access, Visitor
from rayhistory.access.audit import Audit
from rayhistory.access.limits import Allowance
from rayhistory.access.modes import ANYBODY, Proxies
from rayhistory.access.visitor import COOKIE, MISSING, bearer, cookie_header
from rayhistory.errors import AccessError, NotAllowed, NotSignedIn, TooManyCalls
from rayhistory.layout import SessionRef
from rayhistory.server.answers import json_answer, own_error, text_answer
from rayhistory.server.openapi import PREFIX
from rayhistory.server.pages import message_page, page_answer
from rayhistory.server.resolve import Selection
from rayhistory.server.routing import retry, status_of

LOGIN, LOGOUT = "/login", "/logout"
MODE, AUTHENTICATE = "/api/authentication_mode", "/api/authenticate"
PUBLIC = ("/livez", "/readyz", "/readz", "/metrics", "/assets/")
"""What everybody may have: whether the server is well, and the files of our own pages."""
_EXPENSIVE = re.compile(
    r"^/enter_cluster/|/api/v0/(\w+/summarize|tasks/timeline|logs)|/api/history/(rows|metrics|course)"
)
_WRONG_TOKENS_A_MINUTE = 60
_JUDGED, _MOST_JUDGED = 600.0, 10_000
_LARGEST_FORM = 64 << 10
_VISITOR = "rayhistory.visitor"
_HEADERS_WITH_TOKENS = (b"authorization", b"x-ray-authorization")
_LIVE = "/live/"


class Listed(Protocol):
    @property
    def ref(self) -> SessionRef: ...


L = TypeVar("L", bound=Listed)


class Guard:
    def __init__(self, access: Access, proxies: Proxies, *, expensive_calls: int) -> None:
        self.access = access
        self.audit = Audit()
        self.proxies = proxies
        self._expensive = Allowance(expensive_calls, "expensive calls")
        self._wrong_tokens = Allowance(_WRONG_TOKENS_A_MINUTE, "wrong tokens")
        self._judged: OrderedDict[tuple[str, bytes], tuple[bool, float]] = OrderedDict()
        """Whether a token that an address showed was wrong, for ten minutes: a page that goes on asking with one that
        has expired is one try, and whoever was known is not shut out by the tries of others."""

    async def know(self, connection: HTTPConnection) -> Visitor:
        """Whose request this is; what they may see is another question."""
        address = self.proxies.address_of(connection)
        shown = (address, _shown(connection))
        was_wrong, until = self._judged.get(shown, (False, 0.0))
        known = time.monotonic() < until
        if not known:
            self._wrong_tokens.check(address)
        try:
            visitor = await self.access.visitor(connection)
        except NotSignedIn as error:
            if error.wrong and not (known and was_wrong):
                self._wrong_tokens.take(address)
                self.audit.refused("", connection.scope["path"], address, str(error))
                self._judge(shown, wrong=True)
            raise
        self._judge(shown, wrong=False)
        return visitor

    def _judge(self, shown: tuple[str, bytes], *, wrong: bool) -> None:
        self._judged[shown] = wrong, time.monotonic() + _JUDGED
        self._judged.move_to_end(shown)
        if len(self._judged) > _MOST_JUDGED:
            self._judged.popitem(last=False)

    def count(self, connection: HTTPConnection, visitor: Visitor) -> None:
        if _EXPENSIVE.search(connection.scope["path"]):
            who = self.proxies.address_of(connection) if visitor is ANYBODY else visitor.name
            self._expensive.take(who)

    async def admit(self, connection: HTTPConnection, selection: Selection) -> None:
        """Raises unless the visitor may see the session, and writes down that they did or did not."""
        visitor, address = visitor_of(connection), self.proxies.address_of(connection)
        what = f"{selection.namespace}/{selection.name}/{selection.session}"
        if not await self.access.may_see(visitor, selection.namespace):
            reason = f"Forbidden: {visitor.name} may not see the namespace {selection.namespace}"
            self.audit.refused(visitor.name, what, address, reason)
            raise NotAllowed(reason)
        self.audit.opened(visitor, what, address)

    async def visible(self, connection: HTTPConnection, listed: Iterable[L]) -> list[L]:
        """Those of a list that the visitor may open."""
        everything = list(listed)
        seen = await self.seen(connection, {one.ref.namespace for one in everything})
        return [one for one in everything if one.ref.namespace in seen]

    async def seen(self, connection: HTTPConnection, namespaces: Iterable[str]) -> set[str]:
        """Those of the namespaces that the visitor may see."""
        asked, visitor = list(namespaces), visitor_of(connection)
        answers = await asyncio.gather(*(self.access.may_see(visitor, namespace) for namespace in asked))
        return {namespace for namespace, may in zip(asked, answers, strict=True) if may}


def _shown(connection: HTTPConnection) -> bytes:
    """A digest of all that may hold a token."""
    said = [value for name, value in connection.scope["headers"] if name in _HEADERS_WITH_TOKENS]
    return hashlib.sha256(b"\0".join([*said, connection.cookies.get(COOKIE, "").encode()])).digest()


def guard_of(connection: HTTPConnection) -> Guard:
    guard: Guard = connection.app.state.guard
    return guard


def visitor_of(connection: HTTPConnection) -> Visitor:
    """Only the door sets it: whoever came by another way is nobody."""
    visitor: Visitor | None = connection.scope.get(_VISITOR)
    if visitor is None:
        raise NotSignedIn(MISSING)
    return visitor


def signs_in_or_out(scope: Scope) -> bool:
    """The only requests that send something."""
    path: str = scope["path"]
    return scope["method"] == "POST" and (path == LOGOUT or path.endswith(AUTHENTICATE))


async def admit(scope: Scope, selection: Selection) -> None:
    connection = HTTPConnection(scope)
    await guard_of(connection).admit(connection, selection)


class Door:
    """Nobody gets further without being known; signing in happens here, where Ray's dialog and our page both do it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection, path = HTTPConnection(scope), scope["path"]
        guard = guard_of(connection)
        answer: Response | None = None
        if scope["type"] == "http" and (visitor := await _at_a_head(guard, connection)):
            scope = {**scope, _VISITOR: visitor}
        elif scope["type"] == "http" and path.endswith(MODE):
            answer = _mode(guard)
        elif scope["type"] == "http" and path.endswith(AUTHENTICATE):
            answer = await _authenticate(guard, Request(scope, receive))
        elif path == LOGOUT:
            answer = _forget(guard, connection)
        elif path == LOGIN:
            answer = await _login(guard, connection)
        elif not path.startswith(PUBLIC):
            try:
                visitor = await guard.know(connection)
                guard.count(connection, visitor)
                scope = {**scope, _VISITOR: visitor}
            except AccessError as error:
                answer = refusal(connection, error)
        await (answer or self._app)(scope, receive, send)


def refusal(connection: HTTPConnection, error: AccessError) -> Response:
    """In the shape that the asker expects; somebody with a browser who is not signed in yet is asked to."""
    scope, path = connection.scope, connection.scope["path"]
    status, headers = status_of(error), refusal_headers(error)
    if path == "/favicon.ico" or path.startswith("/static/"):
        return text_answer("404: Not Found", 404)  # Ray's dashboard, when it is in front of us, has these itself
    if PREFIX in path:
        return own_error(str(error), status, headers)
    if scope["type"] == "http" and "text/html" in connection.headers.get("accept", ""):
        if isinstance(error, NotSignedIn) and guard_of(connection).access.takes_tokens:
            query = scope["query_string"].decode("latin-1")
            return RedirectResponse(f"{LOGIN}?next={quote(path + (f'?{query}' if query else ''), safe='')}", 303)
        answer = message_page(status, "Not for you" if status in (401, 403) else "Not now", str(error), None)
    else:
        answer = text_answer(str(error), status)
    answer.headers.update(headers)
    return answer


def refusal_headers(error: AccessError) -> dict[str, str]:
    if isinstance(error, NotSignedIn):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, TooManyCalls):
        return {"Retry-After": str(math.ceil(error.retry_after))}
    return retry(status_of(error))


async def _at_a_head(guard: Guard, connection: HTTPConnection) -> Visitor | None:
    """Who signs in at a live cluster, being known here already: what they say then is meant for its head."""
    path = connection.scope["path"]
    if _LIVE not in path or not path.endswith((MODE, AUTHENTICATE)) or connection.app.state.live.proxy is None:
        return None
    if path.endswith(MODE) and guard.access.takes_tokens:
        return None
    try:
        return await guard.know(_without(connection, _HEADERS_WITH_TOKENS))
    except AccessError:
        return None


def _without(connection: HTTPConnection, names: tuple[bytes, ...], *more: tuple[bytes, bytes]) -> HTTPConnection:
    headers = [(name, value) for name, value in connection.scope["headers"] if name not in names]
    return HTTPConnection({**connection.scope, "headers": [*headers, *more]})


def _mode(guard: Guard) -> Response:
    """Whether Ray's frontend shows its dialog when it is refused."""
    return json_answer({"authentication_mode": "token" if guard.access.takes_tokens else "disabled"})


async def _login(guard: Guard, connection: HTTPConnection) -> Response:
    if not guard.access.takes_tokens:
        return RedirectResponse(web.HOME_PATH, 303)
    try:
        signed_in = (await guard.know(connection)).name
    except AccessError:
        signed_in = None
    return _login_page(connection.query_params.get("next", ""), signed_in=signed_in)


def _login_page(
    following: str, *, signed_in: str | None = None, problem: str | None = None, done: bool = False, status: int = 200
) -> Response:
    text = web.render_login(
        following=local_path(following), signed_in=signed_in, problem=problem, done=done, version=__version__
    )
    return page_answer(text, status)


def local_path(text: str) -> str:
    """Where to go on after signing in: on this server only."""
    inside = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if inside else web.HOME_PATH


async def _authenticate(guard: Guard, request: Request) -> Response:
    """As Ray's: the token is in the header, and stays in a cookie. Our page sends it as a form instead."""
    if request.method != "POST":
        return text_answer("use POST", 405)
    if not guard.access.takes_tokens:
        return text_answer("Unauthorized: Token authentication is not enabled", 401)
    form = await _form(request) if "authorization" not in request.headers else {}
    following = form.get("next", "")
    try:
        token = form["token"].strip() if "token" in form else bearer(request.headers.get("authorization", ""))
        visitor = await guard.know(_with_token(request, token))
    except AccessError as error:
        if form:
            return _login_page(following, problem=str(error), status=status_of(error))
        return refusal(request, error)
    guard.audit.signed_in(visitor, guard.proxies.address_of(request))
    if form:
        answer = _login_page(following, signed_in=visitor.name, done=True)  # Ray would follow a redirect itself
    else:
        answer = json_answer({"status": "authenticated", "message": "Token is valid"})
    answer.raw_headers.append(cookie_header(token, secure=guard.proxies.is_secure(request)))
    return answer


def _with_token(request: Request, token: str) -> HTTPConnection:
    """The same request with this token and no other."""
    given = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return _without(request, (*_HEADERS_WITH_TOKENS, b"cookie"), *given)


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > _LARGEST_FORM:
            return {}
    fields = parse_qs(body.decode("utf-8", "replace"))
    return {name: values[-1] for name, values in fields.items() if name in ("token", "next")}


def _forget(guard: Guard, connection: HTTPConnection) -> Response:
    if connection.scope.get("method") != "POST":
        return RedirectResponse(LOGIN, 303)
    answer = RedirectResponse(LOGIN, 303)
    answer.raw_headers.append(cookie_header("", secure=guard.proxies.is_secure(connection)))
    return answer
