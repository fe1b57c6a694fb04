"""Host and Origin checks, against DNS rebinding and cross-site requests."""

import ipaddress
from collections.abc import Iterable

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rayhistory.errors import ERROR_HEADER, AccessError, HostNotAllowed, OriginNotAllowed

LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
_HEALTH = ("/livez", "/readyz", "/readz")
_METRICS = "/metrics"


def default_allowed_hosts(allowed: tuple[str, ...], listen_host: str) -> tuple[str, ...]:
    """Return the allowed hosts. A server on loopback allows only loopback names, unless `--allowed-hosts` is set.

    Without this restriction, any site that the visitor opens could make its own name resolve to loopback.
    """
    if allowed or not is_loopback(listen_host):
        return allowed
    return (*LOOPBACK, listen_host)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach a server that listens on this address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_probe(path: str, host: str) -> bool:
    """Return whether the request may come from a kubelet, a load balancer or Prometheus.

    These send a pod's IP address as Host. Health responses have no data. Metrics may contain names of namespaces, so
    their Host must be an IP address: DNS rebinding works only with a host name.
    """
    return path in _HEALTH or (path == _METRICS and _is_address(host))


def host_name(authority: str) -> str:
    """Return the host name of a Host header, in lower case and without the port."""
    end = authority.rfind("]")
    colon = authority.find(":", max(end, 0))
    return (authority if colon < 0 else authority[:colon]).lower()


def host_matches(host: str, patterns: Iterable[str]) -> bool:
    return any(
        pattern == "*" or host == pattern.lower() or (pattern.startswith("*.") and host.endswith(pattern[1:].lower()))
        for pattern in patterns
    )


def is_same_origin(connection: HTTPConnection, other_origins: Iterable[str] = ()) -> bool:
    """Return True for requests of our own pages, of allowed origins, and of clients other than browsers."""
    origin = connection.headers.get("origin")
    if origin is None:
        return connection.headers.get("sec-fetch-site") not in ("cross-site", "same-site")
    own_host = connection.headers.get("host", "").lower()
    return origin.partition("://")[2].lower() == own_host or origin in other_origins


class HostMiddleware:
    """Rejects unknown Host headers, and cross-site requests that are not GET, HEAD or OPTIONS."""

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(HTTPConnection(scope))
        except AccessError as error:
            response = PlainTextResponse(str(error), error.http_status, {ERROR_HEADER: error.code})
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, connection: HTTPConnection) -> None:
        host = host_name(connection.headers.get("host", ""))
        is_allowed = not self._allowed_hosts or host_matches(host, self._allowed_hosts)
        if not is_allowed and not _is_probe(connection.scope["path"], host):
            raise HostNotAllowed(f"host {host[:100]!r} is not allowed: add it to --allowed-hosts")
        reads = connection.scope["type"] == "http" and connection.scope["method"] in ("GET", "HEAD", "OPTIONS")
        if not reads and "*" not in self._origins and not is_same_origin(connection, self._origins):
            raise OriginNotAllowed("Cross-site request not allowed")
