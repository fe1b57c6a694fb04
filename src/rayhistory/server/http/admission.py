"""Admission: identify the visitor of a request, limit their rate, and decide which sessions they may see.

Every request passes `identify`, every session `admit`, and every list `filter_visible`. Long responses, such as a log
stream or a WebSocket, are admitted again while they last (`revocation.py`).
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable
from typing import Protocol, TypeVar

from starlette.requests import HTTPConnection
from starlette.types import Scope

from rayhistory.access import Access, Visitor
from rayhistory.access.audit import AuditLog
from rayhistory.access.modes.none import ANONYMOUS
from rayhistory.access.rate_limit import RateLimiter
from rayhistory.access.trusted_proxies import TrustedProxies
from rayhistory.access.visitor import COOKIE, MISSING
from rayhistory.errors import AccessDenied, InvalidToken, NotSignedIn
from rayhistory.lru import LruCache
from rayhistory.sessions import SessionRef
from rayhistory.sessions.selection import Selection

TOKEN_HEADERS = (b"authorization", b"x-ray-authorization")
VISITOR_KEY = "rayhistory.visitor"
"""The key of the visitor in the ASGI scope, set by AuthMiddleware."""
_EXPENSIVE_PATH = re.compile(
    r"^/enter_cluster/|^/s/.*@|/api/v0/(\w+/summarize|tasks/timeline|logs)"
    r"|^/s/[^/]+/[^/]+/[^/]+/logs/"
    r"|/api/history/(charts|rows|metrics|overview|search|sql)|/prometheus/api/v1/|/search(\.json)?$"
)
_INVALID_TOKENS_PER_MINUTE = 60
_REJECTED_TOKEN_TTL_S = 600.0
_MAX_REJECTED_TOKENS = 10_000


class HasSessionRef(Protocol):
    @property
    def ref(self) -> SessionRef: ...


T = TypeVar("T", bound=HasSessionRef)


class Admission:
    def __init__(self, access: Access, proxies: TrustedProxies, *, rate_limit: int) -> None:
        self.access = access
        self.audit = AuditLog()
        self.proxies = proxies
        self._expensive_calls = RateLimiter(rate_limit, "expensive calls")
        self._invalid_tokens = RateLimiter(_INVALID_TOKENS_PER_MINUTE, "invalid tokens")
        self._rejected_tokens: LruCache[tuple[str, bytes], bool] = LruCache(
            _MAX_REJECTED_TOKENS, ttl=_REJECTED_TOKEN_TTL_S
        )
        """Invalid tokens by address and digest, so that a page that polls with an expired token counts as one attempt.
        """

    async def identify(self, connection: HTTPConnection) -> Visitor:
        """Return the visitor of a request. Count and audit invalid tokens.

        Only invalid tokens are limited. Behind a proxy, all visitors may have the same address, and one of them must
        not lock out the others.
        """
        try:
            return await self.access.visitor(connection)
        except InvalidToken as error:
            address = self.proxies.client_address(connection)
            credentials = (address, _credentials_digest(connection))
            if credentials not in self._rejected_tokens:
                self._invalid_tokens.take(address)
                self.audit.access_denied("", connection.scope["path"], address, str(error))
                self._rejected_tokens.put(credentials, True)
            raise

    def limit_expensive_calls(self, connection: HTTPConnection, visitor: Visitor) -> None:
        """Count the call if its path is an expensive one. Raise RateLimited if the visitor made too many such calls."""
        if _EXPENSIVE_PATH.search(connection.scope["path"]):
            self._expensive_calls.take(self.caller(connection, visitor))

    def caller(self, connection: HTTPConnection, visitor: Visitor) -> str:
        """Return the name under which a visitor's calls are counted. Without a sign-in, this is the address."""
        return self.proxies.client_address(connection) if visitor is ANONYMOUS else visitor.name

    async def admit(self, connection: HTTPConnection, selection: Selection) -> None:
        """Raise AccessDenied unless the visitor may see the session. Both outcomes are audited."""
        visitor, address = visitor_of(connection), self.proxies.client_address(connection)
        if not await self.access.may_see(visitor, selection.namespace):
            reason = f"Forbidden: {visitor.name} may not see the namespace {selection.namespace}"
            self.audit.access_denied(visitor.name, selection.path, address, reason)
            raise AccessDenied(reason)
        self.audit.session_opened(visitor, selection.path, address)

    async def filter_visible(self, connection: HTTPConnection, entries: Iterable[T]) -> list[T]:
        """Return the entries whose sessions the visitor may see."""
        everything = list(entries)
        visible = await self.visible_namespaces(connection, {entry.ref.namespace for entry in everything})
        return [entry for entry in everything if entry.ref.namespace in visible]

    async def visible_namespaces(self, connection: HTTPConnection, namespaces: Iterable[str]) -> set[str]:
        """Return the namespaces that the visitor may see."""
        candidates, visitor = list(namespaces), visitor_of(connection)
        allowed = await asyncio.gather(*(self.access.may_see(visitor, namespace) for namespace in candidates))
        return {namespace for namespace, may_see in zip(candidates, allowed, strict=True) if may_see}


def _credentials_digest(connection: HTTPConnection) -> bytes:
    """Return a digest of the headers and of the cookie that may contain a token."""
    headers = [value for name, value in connection.scope["headers"] if name in TOKEN_HEADERS]
    return hashlib.sha256(b"\0".join([*headers, connection.cookies.get(COOKIE, "").encode()])).digest()


def admission_of(connection: HTTPConnection) -> Admission:
    admission: Admission = connection.app.state.admission
    return admission


def visitor_of(connection: HTTPConnection) -> Visitor:
    """Return the visitor that AuthMiddleware identified. A request that bypassed the middleware has none."""
    visitor: Visitor | None = connection.scope.get(VISITOR_KEY)
    if visitor is None:
        raise NotSignedIn(MISSING)
    return visitor


def caller_of(connection: HTTPConnection) -> str:
    """Return the name under which a request's calls are counted."""
    return admission_of(connection).caller(connection, visitor_of(connection))


async def admit(scope: Scope, selection: Selection) -> None:
    connection = HTTPConnection(scope)
    await admission_of(connection).admit(connection, selection)
