"""Which names this server goes by, and from whose pages it is called: against rebound names and foreign pages."""

import ipaddress
from collections.abc import Iterable

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]")


def names_of(allowed: tuple[str, ...], listening: str) -> tuple[str, ...]:
    """What is accepted as Host. A server on loopback goes by loopback's names, unless it is told others.

    Other names can be made to point at loopback by anybody whose page the visitor looks at.
    """
    if allowed or not _is_loopback(listening):
        return allowed
    return (*LOOPBACK, listening)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def host_of(authority: str) -> str:
    """The name in front of the port."""
    end = authority.rfind("]")
    colon = authority.find(":", max(end, 0))
    return (authority if colon < 0 else authority[:colon]).lower()


def goes_by(host: str, names: Iterable[str]) -> bool:
    return any(
        name == "*" or host == name.lower() or (name.startswith("*.") and host.endswith(name[1:].lower()))
        for name in names
    )


def is_own_page(connection: HTTPConnection, others: Iterable[str] = ()) -> bool:
    """Whether a request was made by a page of ours or of the other origins, or by no page at all."""
    origin = connection.headers.get("origin")
    if origin is None:
        return connection.headers.get("sec-fetch-site") not in ("cross-site", "same-site")
    return origin.partition("://")[2].lower() == connection.headers.get("host", "").lower() or origin in others


class Hosts:
    """Refuses requests for names that are not ours, and what other sites' pages may not do: sending, and sockets."""

    def __init__(self, app: ASGIApp, names: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self._app = app
        self._names = names
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(HTTPConnection(scope))
        if refusal:
            await PlainTextResponse(*refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, connection: HTTPConnection) -> tuple[str, int] | None:
        host = host_of(connection.headers.get("host", ""))
        if self._names and not goes_by(host, self._names):
            return "This server does not go by that name: add it to --allowed-hosts", 400
        only_read = connection.scope["type"] == "http" and connection.scope["method"] in ("GET", "HEAD", "OPTIONS")
        if not only_read and "*" not in self._origins and not is_own_page(connection, self._origins):
            return "Pages of other sites may not do this", 403
        return None
