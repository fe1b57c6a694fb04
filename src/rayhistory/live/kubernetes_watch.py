"""Discover Ray's resources in Kubernetes: list them once, then watch, and reconnect when the watch ends.

Discovery is optional. While the API is unavailable, the last known resources stay. If the CRDs are not installed, or
access to them is denied, the list of resources is empty.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Any

from rayhistory.errors import KubernetesError
from rayhistory.kubernetes_api import KubernetesApi
from rayhistory.live.kubernetes_resources import (
    SUSPENDED,
    RayClusterResource,
    RayOwnerResource,
    parse_cluster,
    parse_owner,
)

log = logging.getLogger(__name__)

_API_GROUP = "/apis/ray.io/v1"
_PAGE_SIZE = "500"
_WATCH_TIMEOUT_S = 300
_WATCH_IDLE_S = _WATCH_TIMEOUT_S + 30
_NOT_INSTALLED_INTERVAL_S = 30.0
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 30.0
_EXPIRED = 410
_NOT_INSTALLED = {403, 404}

Key = tuple[str, str]


class ResourceWatch:
    """The resources of one kind, in one namespace or in all."""

    def __init__(self, api: KubernetesApi, resource: str, namespace: str | None) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.listed = asyncio.Event()
        """An event that is set after the first listing, even a failed one. Nobody waits for CRDs that are missing."""
        self.problem: str | None = None
        self._api = api
        self._resource = resource
        scope = "" if namespace is None else f"/namespaces/{namespace}"
        self._path = f"{_API_GROUP}{scope}/{resource}"
        self._version = ""

    async def run(self) -> None:
        backoff = _MIN_BACKOFF_S
        while True:
            try:
                if not self._version:
                    await self._list()
                self.listed.set()
                await self._watch()
                backoff = _MIN_BACKOFF_S
                await asyncio.sleep(backoff)
            except KubernetesError as error:
                backoff = await self._back_off(error, backoff)

    async def _back_off(self, error: KubernetesError, backoff: float) -> float:
        """Handle an error, sleep, and return the next backoff."""
        self.listed.set()
        if error.status == _EXPIRED:
            self._version = ""
        else:
            self._report(str(error))
        if error.status in _NOT_INSTALLED:
            self.objects, self._version = {}, ""
            await asyncio.sleep(_NOT_INSTALLED_INTERVAL_S)
            return _MIN_BACKOFF_S
        await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311
        return min(_MAX_BACKOFF_S, backoff * 2)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("Kubernetes watch failed, retrying", extra={"resource": self._resource, "reason": problem})
        self.problem = problem

    async def _list(self) -> None:
        objects: dict[Key, dict[str, Any]] = {}
        token = ""
        while True:
            page = await self._api.get(self._path, limit=_PAGE_SIZE, **({"continue": token} if token else {}))
            metadata = page.get("metadata") or {}
            for item in page.get("items") or ():
                if key := _key(item):
                    objects[key] = item
            token = metadata.get("continue") or ""
            if not token:
                break
        self.objects, self._version = objects, str(metadata.get("resourceVersion") or "")

    async def _watch(self) -> None:
        params = {
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_TIMEOUT_S),
        }
        async for event in self._api.watch(self._path, _WATCH_IDLE_S, self._clear_problem, **params):
            event_type, resource = event.get("type"), event.get("object")
            if not isinstance(resource, dict):
                continue
            if event_type == "ERROR":
                code = resource.get("code")
                raise KubernetesError(str(resource.get("message")), code if isinstance(code, int) else 500)
            self._apply(str(event_type), resource)

    def _clear_problem(self) -> None:
        self.problem = None

    def _apply(self, event_type: str, resource: dict[str, Any]) -> None:
        metadata = resource.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        key = _key(resource)
        if key and event_type in ("ADDED", "MODIFIED"):
            self.objects[key] = resource
        elif key and event_type == "DELETED":
            self.objects.pop(key, None)
        if isinstance(version, str) and version:
            self._version = version


def _key(resource: Any) -> Key | None:
    metadata = resource.get("metadata") if isinstance(resource, dict) else None
    if not isinstance(metadata, dict):
        return None
    namespace, name = metadata.get("namespace"), metadata.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else None


class ClusterDiscovery:
    def __init__(self, api: KubernetesApi, namespaces: Iterable[str] = ()) -> None:
        scopes: list[str | None] = [*namespaces] or [None]
        self._clusters = [ResourceWatch(api, "rayclusters", scope) for scope in scopes]
        self._owners = {
            "rayjob": [ResourceWatch(api, "rayjobs", scope) for scope in scopes],
            "rayservice": [ResourceWatch(api, "rayservices", scope) for scope in scopes],
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(watch.run()) for watch in self._watches()]

    def _watches(self) -> list[ResourceWatch]:
        return [*self._clusters, *(watch for watches in self._owners.values() for watch in watches)]

    @property
    def problem(self) -> str | None:
        """The reason why the list of clusters may be outdated; None if it is up to date."""
        return next((watch.problem for watch in self._clusters if watch.problem), None)

    def clusters(self) -> list[RayClusterResource]:
        return [parse_cluster(resource) for watch in self._clusters for resource in list(watch.objects.values())]

    def cluster(self, namespace: str, name: str) -> RayClusterResource | None:
        resources = (watch.objects.get((namespace, name)) for watch in self._clusters)
        return next((parse_cluster(resource) for resource in resources if resource is not None), None)

    def has_cluster(self, namespace: str, name: str) -> bool:
        """Return True if the cluster exists and is not suspended."""
        cluster = self.cluster(namespace, name)
        return cluster is not None and cluster.state != SUSPENDED

    def owned_cluster(self, namespace: str, kind: str, name: str) -> RayClusterResource | None:
        """Return the cluster that a RayJob or RayService runs on now."""
        owner = self._owner(namespace, kind, name)
        if owner and owner.cluster and (cluster := self.cluster(namespace, owner.cluster)):
            return cluster
        owned = [
            cluster
            for cluster in self.clusters()
            if (cluster.namespace, cluster.owner_kind, cluster.owner_name) == (namespace, kind, name)
        ]
        return max(owned, key=lambda cluster: cluster.created_ms or 0, default=None)

    def _owner(self, namespace: str, kind: str, name: str) -> RayOwnerResource | None:
        resources = (watch.objects.get((namespace, name)) for watch in self._owners.get(kind, ()))
        return next((parse_owner(resource) for resource in resources if resource), None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
