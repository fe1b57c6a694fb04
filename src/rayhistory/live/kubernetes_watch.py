"""Ray's resources in Kubernetes, as they are now: listed once, then watched, and watched again when that breaks off.

Nothing depends on it: while the API does not answer, what was known last stays known; where the resources are not
installed there are none, until they are.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Any

from rayhistory.errors import KubernetesError
from rayhistory.kubeapi import KubeApi
from rayhistory.live.resources import SUSPENDED, LiveCluster, LiveOwner, cluster_of, owner_of

log = logging.getLogger(__name__)

_GROUP = "/apis/ray.io/v1"
_PAGE = "500"
_WATCH_SECONDS = 300
_NOT_INSTALLED = 30.0
_SHORTEST, _LONGEST = 0.5, 30.0
_GONE = 410
_ABSENT = {403, 404}

Key = tuple[str, str]


class Watched:
    """The resources of one kind, in one namespace or in all."""

    def __init__(self, api: KubeApi, resource: str, namespace: str | None) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.listed = asyncio.Event()
        """That it was tried: others do not wait longer for a cluster that has no such resources."""
        self.problem: str | None = None
        self._api = api
        self._resource = resource
        self._path = f"{_GROUP}/{resource}" if namespace is None else f"{_GROUP}/namespaces/{namespace}/{resource}"
        self._version = ""

    async def run(self) -> None:
        pause = _SHORTEST
        while True:
            try:
                if not self._version:
                    await self._list()
                self.listed.set()
                await self._watch()
                pause = _SHORTEST
                await asyncio.sleep(pause)
            except KubernetesError as error:
                pause = await self._after(error, pause)

    async def _after(self, error: KubernetesError, pause: float) -> float:
        """What an error means, and how long to wait after the next one."""
        self.listed.set()
        if error.status == _GONE:
            self._version = ""
        else:
            self._tell(str(error))
        if error.status in _ABSENT:
            self.objects, self._version = {}, ""
            await asyncio.sleep(_NOT_INSTALLED)
            return _SHORTEST
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        return min(_LONGEST, pause * 2)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("Ray's resources cannot be watched", extra={"resource": self._resource, "reason": problem})
        self.problem = problem

    async def _list(self) -> None:
        found: dict[Key, dict[str, Any]] = {}
        more = ""
        while True:
            page = await self._api.get(self._path, limit=_PAGE, **({"continue": more} if more else {}))
            metadata = page.get("metadata") or {}
            for item in page.get("items") or ():
                if key := _key(item):
                    found[key] = item
            more = metadata.get("continue") or ""
            if not more:
                break
        self.objects, self._version = found, str(metadata.get("resourceVersion") or "")

    async def _watch(self) -> None:
        asked = {"resourceVersion": self._version, "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        async for event in self._api.watch(self._path, _WATCH_SECONDS + 30, self._opened, **asked):
            kind, changed = event.get("type"), event.get("object")
            if not isinstance(changed, dict):
                continue
            if kind == "ERROR":
                code = changed.get("code")
                raise KubernetesError(str(changed.get("message")), code if isinstance(code, int) else 500)
            self._take(str(kind), changed)

    def _opened(self) -> None:
        self.problem = None

    def _take(self, kind: str, changed: dict[str, Any]) -> None:
        metadata = changed.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        key = _key(changed)
        if key and kind in ("ADDED", "MODIFIED"):
            self.objects[key] = changed
        elif key and kind == "DELETED":
            self.objects.pop(key, None)
        if isinstance(version, str) and version:
            self._version = version


def _key(resource: Any) -> Key | None:
    metadata = resource.get("metadata") if isinstance(resource, dict) else None
    if not isinstance(metadata, dict):
        return None
    namespace, name = metadata.get("namespace"), metadata.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else None


class Discovery:
    def __init__(self, api: KubeApi, namespaces: Iterable[str] = ()) -> None:
        places: list[str | None] = [*namespaces] or [None]
        self._clusters = [Watched(api, "rayclusters", place) for place in places]
        self._owners = {
            "rayjob": [Watched(api, "rayjobs", place) for place in places],
            "rayservice": [Watched(api, "rayservices", place) for place in places],
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(watched.run()) for watched in self._all()]

    async def listed(self) -> None:
        """Waits until everything was asked for once."""
        for watched in self._all():
            await watched.listed.wait()

    def _all(self) -> list[Watched]:
        return [*self._clusters, *(watched for kind in self._owners.values() for watched in kind)]

    @property
    def problem(self) -> str | None:
        """Why clusters may be missing, or shown that are gone."""
        return next((watched.problem for watched in self._clusters if watched.problem), None)

    def clusters(self) -> list[LiveCluster]:
        return [cluster_of(found) for watched in self._clusters for found in list(watched.objects.values())]

    def cluster(self, namespace: str, name: str) -> LiveCluster | None:
        return next(
            (cluster_of(w.objects[namespace, name]) for w in self._clusters if (namespace, name) in w.objects), None
        )

    def has(self, namespace: str, name: str) -> bool:
        """Whether there is such a cluster and it is not suspended."""
        found = self.cluster(namespace, name)
        return found is not None and found.state != SUSPENDED

    def owned(self, namespace: str, kind: str, name: str) -> LiveCluster | None:
        """The cluster that a RayJob or RayService runs on now."""
        owner = self._owner(namespace, kind, name)
        if owner and owner.cluster and (found := self.cluster(namespace, owner.cluster)):
            return found
        owned = [
            cluster
            for cluster in self.clusters()
            if (cluster.namespace, cluster.owner_kind, cluster.owner_name) == (namespace, kind, name)
        ]
        return max(owned, key=lambda cluster: cluster.created_ms or 0, default=None)

    def _owner(self, namespace: str, kind: str, name: str) -> LiveOwner | None:
        found = (watched.objects.get((namespace, name)) for watched in self._owners.get(kind, ()))
        return next((owner_of(resource) for resource in found if resource), None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
