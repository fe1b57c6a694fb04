"""Visitors, the protocol of access modes, and the token of a request."""

from collections.abc import Iterable
from typing import Protocol
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import HTTPConnection

from rayhistory.errors import InvalidToken, NotSignedIn

COOKIE = "rayhistory-token"
_COOKIE_MAX_AGE_S = 12 * 3600
_MAX_TOKEN_CHARS = 16 << 10
_UNQUOTED_IN_COOKIES = "!#$&'()*+/:<=>?@[]^`{|}~"

MISSING = "Unauthorized: Missing authentication token"
INVALID = "Forbidden: Invalid authentication token"
"""Error messages of Ray, copied because Ray's clients print them."""


class Visitor(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    namespaces: tuple[str, ...] = ()
    """Namespace patterns from the access file. Empty if Kubernetes decides about access."""


class Access(Protocol):
    """An access mode. Both methods raise AccessCheckFailed if the check itself fails."""

    takes_tokens: bool
    """True if visitors sign in here with a token."""

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        """Return the visitor of a request; raise NotSignedIn if the request identifies none."""
        ...

    async def may_see(self, visitor: Visitor, namespace: str) -> bool: ...


def token_of(connection: HTTPConnection) -> str:
    """Return a request's token: from the headers that Ray reads, in Ray's order, else from our cookie."""
    for header in ("authorization", "x-ray-authorization"):
        token = bearer(connection.headers.get(header, ""))
        if token:
            return token
    return token_of_cookie(connection)


def bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return _checked(token.strip()) if scheme.lower() == "bearer" else ""


def token_of_cookie(connection: HTTPConnection) -> str:
    return _checked(unquote(connection.cookies.get(COOKIE, "")))


def _checked(token: str) -> str:
    if len(token) > _MAX_TOKEN_CHARS or not token.isprintable() or not token.isascii():
        raise InvalidToken(INVALID)
    return token


def required_token(connection: HTTPConnection) -> str:
    token = token_of(connection)
    if not token:
        raise NotSignedIn(MISSING)
    return token


def cookie_header(token: str, *, secure: bool, path: str = "/", name: str = COOKIE) -> tuple[bytes, bytes]:
    """Return a Set-Cookie header that scripts cannot read and other sites cannot use.

    An empty token deletes the cookie.
    """
    max_age = _COOKIE_MAX_AGE_S if token else 0
    value = quote(token, safe=_UNQUOTED_IN_COOKIES)
    header = f"{name}={value}; Path={path}; Max-Age={max_age}; HttpOnly; SameSite=Strict"
    return b"set-cookie", (header + ("; Secure" if secure else "")).encode()


def namespace_matches(namespace: str, patterns: Iterable[str]) -> bool:
    """Return whether a namespace matches one of these names or prefixes. A prefix ends with a star."""
    return any(
        namespace.startswith(pattern[:-1]) if pattern.endswith("*") else namespace == pattern for pattern in patterns
    )
