"""Live clusters: find them, join them with the sessions in the store, and find their heads for the session `live`.

A cluster is live if Kubernetes has it, or if its collector's heartbeat is recent. If Kubernetes is watched, only
Kubernetes provides dashboard addresses. Otherwise the collector's record does. Anybody who can write the record chooses
this address, so only addresses in `--live-networks` are used. Without a usable address, `live` is the newest session in
the store.
"""

import hashlib
import logging
from collections.abc import Iterable
from urllib.parse import unquote

import httpx
import msgspec
from starlette.requests import HTTPConnection

from rayhistory.access.modes.none import OpenAccess
from rayhistory.access.visitor import bearer, token_of
from rayhistory.errors import InvalidToken, NotSignedIn, SessionNotFound
from rayhistory.kubernetes_api import KubernetesApi
from rayhistory.live.head_address import HeadAddress, resolve_registered_head
from rayhistory.live.head_proxy import HeadProxy
from rayhistory.live.kubernetes_resources import RUNNING as CLUSTER_RUNNING
from rayhistory.live.kubernetes_resources import RayClusterResource
from rayhistory.live.kubernetes_watch import ClusterDiscovery
from rayhistory.lru import LruCache
from rayhistory.networks import Networks
from rayhistory.server.history_api.api_types import ClusterSummary
from rayhistory.server.http.admission import admission_of, visitor_of
from rayhistory.server.http.paths import AUTHENTICATE
from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import RUNNING, CatalogEntry, SessionCatalog
from rayhistory.sessions.selection import LIVE, Selection

log = logging.getLogger(__name__)

GONE = "gone"
_TOKEN_COOKIE = "rayhistory-live-token"  # noqa: S105
_VERIFIED_TTL_S, _MISMATCH_TTL_S = 30.0, 10.0
_MAX_VERIFIED_HEADS = 10_000
_MAX_ERROR_CHARS = 200


class Head(msgspec.Struct, frozen=True):
    address: HeadAddress
    token: str
    """The visitor's token for this cluster."""
    ray_version: str | None = None


class _RegisteredHead(msgspec.Struct, frozen=True):
    address: HeadAddress | None
    """Address of the head; None if the registered address must not be used."""


class LiveSessions:
    """Live clusters and their heads. `proxy` is None unless `--live` is set."""

    def __init__(
        self,
        catalog: SessionCatalog,
        discovery: ClusterDiscovery | None,
        kubernetes: KubernetesApi | None,
        proxy: HeadProxy | None,
        *,
        registered_networks: Networks,
        through_api: bool = False,
        pass_own_tokens: bool = False,
    ) -> None:
        self.discovery = discovery
        self.proxy = proxy
        self._catalog = catalog
        self._kubernetes = kubernetes
        self._registered_networks = registered_networks
        self._through_api = through_api
        self._pass_own_tokens = pass_own_tokens
        self._verified: LruCache[tuple[SessionRef, str], _RegisteredHead] = LruCache(_MAX_VERIFIED_HEADS)
        self._refused_urls: LruCache[str, bool] = LruCache(_MAX_VERIFIED_HEADS)

    def _reads_head(self, selection: Selection) -> bool:
        return self.proxy is not None and selection.session == LIVE and selection.as_of_ms is None

    async def head(self, selection: Selection, token: str = "") -> Head | None:
        """Return the head to read a session from; None if it must be read from the store."""
        if self.proxy is None or not self._reads_head(selection):
            return None
        if self.discovery is None:
            return await self._registered_head(self.proxy, selection, token)
        cluster = self._discovered(selection)
        usable = cluster and cluster.state == CLUSTER_RUNNING and cluster.service
        return Head(self._address_in_kubernetes(cluster), token, cluster.ray_version) if cluster and usable else None

    async def live_session_ref(self, selection: Selection, connection: HTTPConnection) -> SessionRef | None:
        """Return the reference of the session `live` of the selected cluster; None if it has no head to read from."""
        head = await self.head(selection, self.head_token(connection, selection))
        if head is None:
            return None
        cluster = self._discovered(selection)
        if cluster:
            return SessionRef(cluster.namespace, cluster.name, LIVE, cluster.owner_kind, cluster.owner_name)
        return SessionRef(selection.namespace, selection.name, LIVE)

    def has_cluster(self, selection: Selection) -> bool:
        """Return True if Kubernetes has the selected cluster."""
        return self._discovered(selection) is not None

    def _discovered(self, selection: Selection) -> RayClusterResource | None:
        if self.discovery is None:
            return None
        if selection.owner_kind:
            return self.discovery.owned_cluster(selection.namespace, selection.owner_kind, selection.name)
        return self.discovery.cluster(selection.namespace, selection.name)

    def _address_in_kubernetes(self, cluster: RayClusterResource) -> HeadAddress:
        if self._through_api and self._kubernetes:
            api = self._kubernetes
            path = f"/api/v1/namespaces/{cluster.namespace}/services/{cluster.service}:dashboard/proxy"
            return HeadAddress(api.server + path, api.headers(), api.verify)
        return HeadAddress(f"http://{cluster.service}.{cluster.namespace}.svc:{cluster.port}")

    async def _registered_head(self, proxy: HeadProxy, selection: Selection, token: str) -> Head | None:
        """Return the head at the registered address, after its dashboard has confirmed the session's name."""
        try:
            if selection.owner_kind:
                entry = await self._catalog.find_owned(selection.namespace, selection.owner_kind, selection.name, LIVE)
            else:
                entry = await self._catalog.find(selection.namespace, selection.name, LIVE)
        except SessionNotFound:
            return None
        start = await self._catalog.start(entry)
        if not start or not start.dashboard_address or not entry.recorded or self._catalog.state(entry) != RUNNING:
            return None
        address = await self._verified_address(proxy, entry.ref, start.dashboard_address.rstrip("/"), token)
        return Head(address, token, start.ray_version) if address else None

    async def _verified_address(self, proxy: HeadProxy, ref: SessionRef, url: str, token: str) -> HeadAddress | None:
        """Resolve and check a registered address.

        The result is cached, so that later requests use the same IP address.
        """
        verified = self._verified.get((ref, url))
        if verified is not None:
            return verified.address
        address = await resolve_registered_head(url, self._registered_networks)
        if address is None and url not in self._refused_urls:
            self._refused_urls.put(url, True)
            log.warning(
                "cluster's dashboard address is not in --live-networks, reading the session from the store "
                "(logged once)",
                extra={"session": ref.path, "address": url[:_MAX_ERROR_CHARS]},
            )
        if address and await self._is_name_shared(ref):
            address = None
        try:
            if address and not await _has_session(proxy, address, ref.session, token):
                address = None
        except httpx.PoolTimeout:
            return None  # the limit of connections was reached, which says nothing about the head
        self._verified.put((ref, url), _RegisteredHead(address), ttl=_VERIFIED_TTL_S if address else _MISMATCH_TTL_S)
        return address

    async def _is_name_shared(self, ref: SessionRef) -> bool:
        """Return True if another cluster has a session of this name.

        Then one of the two records is forged or a copy.
        """
        return any(
            entry.ref.session == ref.session and entry.ref.identity != ref.identity
            for entry in await self._catalog.entries()
        )

    def head_token(self, connection: HTTPConnection, selection: Selection) -> str:
        """Return the visitor's token for this cluster.

        The visitor's token for this server is used only if the operator allows it.
        """
        if not self._reads_head(selection):
            return ""
        headers, access = connection.headers, admission_of(connection).access
        if connection.scope["path"] == AUTHENTICATE:
            return bearer(headers.get("authorization", ""))
        stored = unquote(connection.cookies.get(head_token_cookie(connection), ""))
        if stored.isascii() and stored.isprintable() and stored:
            return stored
        if "x-ray-authorization" in headers and (not access.takes_tokens or "authorization" in headers):
            return bearer(headers["x-ray-authorization"])
        if self._pass_own_tokens:
            return token_of(connection)
        return bearer(headers.get("authorization", "")) if isinstance(access, OpenAccess) else ""

    async def clusters(self, connection: HTTPConnection, entries: Iterable[CatalogEntry]) -> list[ClusterSummary]:
        """List every cluster that the visitor may see, live or gone."""
        sessions_by_cluster: dict[tuple[str, str], list[CatalogEntry]] = {}
        for entry in entries:
            sessions_by_cluster.setdefault((entry.ref.namespace, entry.ref.cluster), []).append(entry)
        resources = {(cluster.namespace, cluster.name): cluster for cluster in await self.discovered(connection)}
        return [
            self._summary(key, resources.get(key), sessions_by_cluster.get(key, []))
            for key in sorted({*resources, *sessions_by_cluster})
        ]

    def _summary(
        self, key: tuple[str, str], resource: RayClusterResource | None, sessions: list[CatalogEntry]
    ) -> ClusterSummary:
        namespace, name = key
        newest = next(iter(sessions), None)  # in the order of the catalog
        running = any(self._catalog.state(entry) == RUNNING for entry in sessions)
        state = resource.state if resource else RUNNING if running else GONE
        return ClusterSummary(
            namespace=namespace,
            cluster=name,
            state=state,
            owner_kind=resource.owner_kind if resource else newest.ref.owner_kind if newest else None,
            owner_name=resource.owner_name if resource else newest.ref.owner_name if newest else None,
            ray_version=resource.ray_version if resource else None,
            created_ms=resource.created_ms if resource else None,
            sessions=len(sessions),
            newest=newest.ref.session if newest else None,
            url=None if state == GONE or not (newest or self.proxy) else f"/s/{namespace}/{name}/{LIVE}/",
        )

    async def unrecorded(self, connection: HTTPConnection, entries: Iterable[CatalogEntry]) -> list[CatalogEntry]:
        """List running clusters that can be read from their heads and have no running session in the store."""
        if self.proxy is None:
            return []
        recorded = {(e.ref.namespace, e.ref.cluster) for e in entries if self._catalog.state(e) == RUNNING}
        return [
            CatalogEntry(
                SessionRef(cluster.namespace, cluster.name, LIVE, cluster.owner_kind, cluster.owner_name),
                recorded=True,
                alive=self._catalog.now(),
                started_ms=cluster.created_ms,
            )
            for cluster in await self.discovered(connection)
            if cluster.state == CLUSTER_RUNNING and (cluster.namespace, cluster.name) not in recorded
        ]

    async def discovered(self, connection: HTTPConnection) -> list[RayClusterResource]:
        """List the clusters in Kubernetes that the visitor may see."""
        if self.discovery is None:
            return []
        clusters = self.discovery.clusters()
        namespaces = {cluster.namespace for cluster in clusters}
        visible = await admission_of(connection).visible_namespaces(connection, namespaces)
        return [cluster for cluster in clusters if cluster.namespace in visible]

    async def close(self) -> None:
        if self.discovery:
            await self.discovery.close()
        if self.proxy:
            await self.proxy.close()


async def _has_session(proxy: HeadProxy, address: HeadAddress, session: str, token: str) -> bool:
    """Return whether the dashboard at this address reports this session name.

    The first request has no token, so that only heads that require the token get it.
    """
    try:
        response = await proxy.get(address, "/api/version")
        if response.status_code in (401, 403) and token:
            response = await proxy.get(address, "/api/version", token)
        if response.status_code in (401, 403):
            error = InvalidToken if response.status_code == 403 else NotSignedIn
            raise error(response.text[:_MAX_ERROR_CHARS])
        return response.status_code == 200 and response.json().get("session_name") == session
    except httpx.PoolTimeout:
        raise
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError, RecursionError):
        return False


def live_of(connection: HTTPConnection) -> LiveSessions:
    live: LiveSessions = connection.app.state.live
    return live


def head_token_cookie(connection: HTTPConnection) -> str:
    """Return the name of the cookie with this visitor's token for the head.

    The name differs per visitor, so that the next visitor in the same browser does not send this token.
    """
    return f"{_TOKEN_COOKIE}-{hashlib.sha256(visitor_of(connection).name.encode()).hexdigest()[:16]}"
