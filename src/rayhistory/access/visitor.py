"""Visitors, the one question that is asked about them, and the token that they bring."""

from collections.abc import Iterable
from typing import Protocol
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import HTTPConnection

from rayhistory.errors import NotSignedIn

COOKIE = "rayhistory-token"
_LIFETIME = 12 * 3600
_LONGEST_TOKEN = 16 << 10
_AS_IT_IS = "!#$&'()*+/:<=>?@[]^`{|}~"

MISSING = "Unauthorized: Missing authentication token"
INVALID = "Forbidden: Invalid authentication token"
"""Ray's own words, which its clients print."""


class Visitor(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    namespaces: tuple[str, ...] = ()
    """Where rules of ours decide: what they give to this visitor."""


class Access(Protocol):
    """How visitors are known. Both questions raise AccessUnknown when they cannot be answered."""

    takes_tokens: bool
    """Whether visitors sign in here, with a token."""

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        """Whose request this is; raises NotSignedIn."""
        ...

    async def may_see(self, visitor: Visitor, namespace: str) -> bool: ...


def token_of(connection: HTTPConnection) -> str:
    """The token of a request, from where Ray looks for it, in its order; only the cookie is our own."""
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
    if len(token) > _LONGEST_TOKEN or not token.isprintable() or not token.isascii():
        raise NotSignedIn(INVALID, wrong=True)
    return token


def needed_token(connection: HTTPConnection) -> str:
    token = token_of(connection)
    if not token:
        raise NotSignedIn(MISSING)
    return token


def cookie_header(token: str, *, secure: bool, path: str = "/", name: str = COOKIE) -> tuple[bytes, bytes]:
    """Keeps a token where no script can read it, and no other site can use it; without a token, forgets it."""
    lifetime = _LIFETIME if token else 0
    value = f"{name}={quote(token, safe=_AS_IT_IS)}; Path={path}; Max-Age={lifetime}; HttpOnly; SameSite=Strict"
    return b"set-cookie", (value + ("; Secure" if secure else "")).encode()


def matches(namespace: str, patterns: Iterable[str]) -> bool:
    """Patterns are names, or beginnings of names that end with a star."""
    return any(
        namespace.startswith(pattern[:-1]) if pattern.endswith("*") else namespace == pattern for pattern in patterns
    )
