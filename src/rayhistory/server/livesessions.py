"""Clusters that are alive, joined with the sessions in the store; and `live`, read from the head where that is allowed.

A cluster is alive because Kubernetes has it, or because its collector says so every half minute. Its dashboard is where
Kubernetes or that collector says, and nowhere else. Whatever of this is missing, `live` is the newest session in the
store.
"""

import hashlib
import ipaddress
import socket
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from rayhistory.access.modes import OpenAccess
from rayhistory.access.visitor import bearer, cookie_header, token_of
from rayhistory.errors import NotSignedIn, RayHistoryError, SessionNotFound
from rayhistory.kubeapi import KubeApi
from rayhistory.layout import SessionRef
from rayhistory.live.discovery import Discovery
from rayhistory.live.proxy import LiveProxy, Target
from rayhistory.live.resources import RUNNING as HAS_A_HEAD
from rayhistory.live.resources import LiveCluster
from rayhistory.server import openapi
from rayhistory.server.answers import json_answer, text_answer
from rayhistory.server.catalogue import LIVE, RUNNING, Catalogue, Entry
from rayhistory.server.frontend import PARAMETER, Frontends, index_page
from rayhistory.server.guard import AUTHENTICATE, MODE, guard_of, visitor_of
from rayhistory.server.resolve import Selection

GONE = "gone"
_TOKEN_COOKIE = "rayhistory-live-token"  # noqa: S105
_VERIFIED, _IN_VAIN = 30.0, 10.0
_RAYS = ("/api/", "/nodes", "/logical/", "/events", "/timezone", "/usage_stats_enabled")
_OURS = (openapi.PREFIX, "/api/grafana_health", "/api/prometheus_health", "/api/profiling_enabled")
"""Profiling stops a worker to look at it: that is more than reading."""


class Head(msgspec.Struct, frozen=True):
    target: Target
    token: str
    """The visitor's, for this cluster."""
    ray_version: str | None = None


class LiveSessions:
    """`proxy` is None unless heads may be asked."""

    def __init__(
        self,
        catalogue: Catalogue,
        discovery: Discovery | None,
        kubernetes: KubeApi | None,
        proxy: LiveProxy | None,
        *,
        through_api: bool = False,
        pass_own_tokens: bool = False,
    ) -> None:
        self.discovery = discovery
        self.proxy = proxy
        self._catalogue = catalogue
        self._kubernetes = kubernetes
        self._through_api = through_api
        self._pass_own_tokens = pass_own_tokens
        self._asked: dict[tuple[str, str], tuple[bool, float]] = {}

    def _may_be_asked(self, selection: Selection) -> bool:
        return self.proxy is not None and selection.session == LIVE and selection.as_of_ms is None

    async def head(self, selection: Selection, token: str = "") -> Head | None:
        """Where the cluster's dashboard is; None when it has to be read from the store."""
        if self.proxy is None or not self._may_be_asked(selection):
            return None
        found = self._discovered(selection)
        if found:
            usable = found.state == HAS_A_HEAD and found.service
            return Head(self._in_kubernetes(found), token, found.ray_version) if usable else None
        return await self._registered(self.proxy, selection, token)

    async def cluster_of(self, selection: Selection, connection: HTTPConnection) -> SessionRef | None:
        """The cluster behind a choice of `live`, if it is read from its head."""
        head = await self.head(selection, self.ray_token(connection, selection))
        if head is None:
            return None
        found = self._discovered(selection)
        if found:
            return SessionRef(found.namespace, found.name, LIVE, found.owner_kind, found.owner_name)
        return SessionRef(selection.namespace, selection.name, LIVE)

    def _discovered(self, selection: Selection) -> LiveCluster | None:
        if self.discovery is None:
            return None
        if selection.owner_kind:
            return self.discovery.owned(selection.namespace, selection.owner_kind, selection.name)
        return self.discovery.cluster(selection.namespace, selection.name)

    def _in_kubernetes(self, cluster: LiveCluster) -> Target:
        if self._through_api and self._kubernetes:
            api = self._kubernetes
            path = f"/api/v1/namespaces/{cluster.namespace}/services/{cluster.service}:dashboard/proxy"
            return Target(api.server + path, api.headers(), api.verify)
        return Target(f"http://{cluster.service}.{cluster.namespace}.svc:{cluster.port}")

    async def _registered(self, proxy: LiveProxy, selection: Selection, token: str) -> Head | None:
        """By the collector's word: whoever is at that address must say that it is this session."""
        try:
            if selection.owner_kind:
                entry = await self._catalogue.find_owned(
                    selection.namespace, selection.owner_kind, selection.name, LIVE
                )
            else:
                entry = await self._catalogue.find(selection.namespace, selection.name, LIVE)
        except SessionNotFound:
            return None
        start = await self._catalogue.start(entry)
        if not start or not start.dashboard_address or not entry.recorded or self._catalogue.state(entry) != RUNNING:
            return None
        address = start.dashboard_address.rstrip("/")
        if not _may_be_a_head(address):
            return None
        target = Target(address)
        same = await self._is(proxy, target, entry.ref.session, token)
        return Head(target, token, start.ray_version) if same else None

    async def _is(self, proxy: LiveProxy, target: Target, session: str, token: str) -> bool:
        same, until = self._asked.get((target.url, session), (False, 0.0))
        if time.monotonic() < until:
            return same
        try:
            answer = await proxy.get(target, "/api/version", token)
            if answer.status_code in (401, 403):
                raise NotSignedIn(answer.text[:200], wrong=answer.status_code == 403)
            same = answer.status_code == 200 and answer.json().get("session_name") == session
        except httpx.PoolTimeout:
            return False  # which says nothing of the head
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError, RecursionError):
            same = False
        now = time.monotonic()
        self._asked = {key: known for key, known in self._asked.items() if now < known[1]}
        self._asked[target.url, session] = same, now + (_VERIFIED if same else _IN_VAIN)
        return same

    def ray_token(self, connection: HTTPConnection, selection: Selection) -> str:
        """The visitor's own token for this cluster; the one for this server only if the operator wants that."""
        if not self._may_be_asked(selection):
            return ""
        headers, access = connection.headers, guard_of(connection).access
        if connection.scope["path"] == AUTHENTICATE:
            return bearer(headers.get("authorization", ""))
        kept = unquote(connection.cookies.get(_cookie(connection), ""))
        if kept.isascii() and kept.isprintable() and kept:
            return kept
        if "x-ray-authorization" in headers and (not access.takes_tokens or "authorization" in headers):
            return bearer(headers["x-ray-authorization"])
        if self._pass_own_tokens:
            return token_of(connection)
        return bearer(headers.get("authorization", "")) if isinstance(access, OpenAccess) else ""

    async def clusters(self, connection: HTTPConnection, entries: Iterable[Entry]) -> list[openapi.LiveCluster]:
        """Every cluster that the visitor may see, alive or not."""
        of_cluster: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            of_cluster.setdefault((entry.ref.namespace, entry.ref.cluster), []).append(entry)
        found = {(each.namespace, each.name): each for each in await self.discovered(connection)}
        rows = []
        for namespace, name in sorted({*found, *of_cluster}):
            alive, sessions = found.get((namespace, name)), of_cluster.get((namespace, name), [])
            newest = max(sessions, key=lambda entry: entry.started_ms or 0, default=None)
            running = any(self._catalogue.state(entry) == RUNNING for entry in sessions)
            state = alive.state if alive else RUNNING if running else GONE
            rows.append(
                openapi.LiveCluster(
                    namespace=namespace,
                    cluster=name,
                    state=state,
                    owner_kind=alive.owner_kind if alive else newest.ref.owner_kind if newest else None,
                    owner_name=alive.owner_name if alive else newest.ref.owner_name if newest else None,
                    ray_version=alive.ray_version if alive else None,
                    created_ms=alive.created_ms if alive else None,
                    sessions=len(sessions),
                    newest=newest.ref.session if newest else None,
                    url=None if state == GONE or not (newest or self.proxy) else f"/s/{namespace}/{name}/{LIVE}/",
                )
            )
        return rows

    async def unrecorded(self, connection: HTTPConnection, entries: Iterable[Entry]) -> list[Entry]:
        """Clusters that run and can be read, and of which no running session is in the store."""
        if self.proxy is None:
            return []
        known = {(e.ref.namespace, e.ref.cluster) for e in entries if self._catalogue.state(e) == RUNNING}
        return [
            Entry(
                SessionRef(each.namespace, each.name, LIVE, each.owner_kind, each.owner_name),
                recorded=True,
                alive=time.time(),
                started_ms=each.created_ms,
            )
            for each in await self.discovered(connection)
            if each.state == HAS_A_HEAD and (each.namespace, each.name) not in known
        ]

    async def discovered(self, connection: HTTPConnection) -> list[LiveCluster]:
        """Those of Kubernetes that the visitor may see."""
        if self.discovery is None:
            return []
        found = self.discovery.clusters()
        seen = await guard_of(connection).seen(connection, {each.namespace for each in found})
        return [each for each in found if each.namespace in seen]

    async def close(self) -> None:
        if self.discovery:
            await self.discovery.close()
        if self.proxy:
            await self.proxy.close()


def _may_be_a_head(address: str) -> bool:
    """Collectors write to the store what they like: addresses of a cloud's own services are nobody's dashboard."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    more = parts.path or parts.query or parts.username
    if parts.scheme not in ("http", "https") or not host or not host.isascii() or more:
        return False
    literal = _literal(host)
    return not (literal and (literal.is_link_local or literal.is_multicast or literal.is_unspecified))


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, in any of the ways in which systems let one be written; None if it is a name."""
    try:
        found = ipaddress.IPv6Address(host)
        return found.ipv4_mapped or found
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return None


def live_of(connection: HTTPConnection) -> LiveSessions:
    live: LiveSessions = connection.app.state.live
    return live


class ByLife:
    """In front of a session's routes: what Ray's API has is read from the head while there is one."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], frontends: Frontends) -> None:
        self.app = app
        self._rays = [
            route
            for route in routes
            if isinstance(route, Route | WebSocketRoute)
            and route.path.startswith(_RAYS)
            and not route.path.startswith(_OURS)
        ]
        self._frontends = frontends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, path = HTTPConnection(scope), scope["path"]
        live, selection = live_of(connection), scope["rayhistory.selection"]
        try:
            head = await live.head(selection, live.ray_token(connection, selection))
        except NotSignedIn as error:
            await text_answer(str(error), 403 if error.wrong else 401)(scope, receive, send)
            return
        except RayHistoryError:
            head = None  # the store says what is the matter with it, better than this could
        if path in (AUTHENTICATE, MODE):
            await self._sign_in(head, live, scope, receive, send)
        elif head is None or live.proxy is None:
            await self.app(scope, receive, send)
        elif path == "/" and scope["type"] == "http":
            await self._document(head, connection)(scope, receive, send)
        elif not self._is_rays(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await live.proxy.websocket(head.target, path, head.token, WebSocket(scope, receive, send))
        else:
            await live.proxy.http(head.target, path, head.token, scope=scope, receive=receive, send=send)

    def _is_rays(self, scope: Scope) -> bool:
        """Nothing that a head could take for the path of something else."""
        plain = not {".", ".."} & {*scope["path"].split("/")}
        return plain and any(route.matches(scope)[0] is Match.FULL for route in self._rays)

    def _document(self, head: Head, connection: HTTPConnection) -> Response:
        try:
            chosen = self._frontends.choose(head.ray_version, connection.query_params.get(PARAMETER))
        except RayHistoryError as error:
            return text_answer(str(error), 400)
        return index_page(chosen, {}) if chosen else text_answer("No Ray Dashboard frontend is installed", 404)

    async def _sign_in(self, head: Head | None, live: LiveSessions, scope: Scope, receive: Receive, send: Send) -> None:
        """Ray's dialog, for a cluster that wants a token of its own: it is kept for this cluster's address only."""
        answer: Response
        connection, path = HTTPConnection(scope), scope["path"]
        if path == MODE:
            if head and live.proxy:
                await live.proxy.http(head.target, path, "", scope=scope, receive=receive, send=send)
                return
            answer = json_answer({"authentication_mode": "disabled"})
        elif head is None or live.proxy is None or scope.get("method") != "POST":
            answer = text_answer("Unauthorized: Token authentication is not enabled", 401)
        else:
            answer = await live.proxy.sign_in(head.target, head.token)
            place = scope["rayhistory.full_path"].removesuffix(AUTHENTICATE.lstrip("/"))
            if answer.status_code == 200 and not scope["rayhistory.selection"].by_cookie:
                secure = guard_of(connection).proxies.is_secure(connection)
                answer.raw_headers.append(
                    cookie_header(head.token, secure=secure, path=place, name=_cookie(connection))
                )
        await answer(scope, receive, send)


def _cookie(connection: HTTPConnection) -> str:
    """Of this visitor: who signs out here cannot be made to forget it, but it does not serve whoever is next."""
    return f"{_TOKEN_COOKIE}-{hashlib.sha256(visitor_of(connection).name.encode()).hexdigest()[:16]}"


def kuberay_info(cluster: LiveCluster) -> dict[str, Any]:
    """As KubeRay lists a cluster that is alive."""
    seconds = (cluster.created_ms or 0) // 1000
    info: dict[str, Any] = {
        "name": cluster.name,
        "namespace": cluster.namespace,
        "sessionName": LIVE,
        "createTime": time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(seconds)),
        "createTimeStamp": seconds,
    }
    if cluster.owner_kind:
        info |= {"ownerKind": cluster.owner_kind, "ownerName": cluster.owner_name}
    return info
