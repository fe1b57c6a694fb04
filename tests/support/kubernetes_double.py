"""A double of the Kubernetes API with the few calls that the server makes. It can be slow or broken, or end watches.

`tests/kubernetes` tests the same calls against a real API server.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

RESOURCES = ("rayclusters", "rayjobs", "rayservices")
KINDS = {"rayclusters": "RayCluster", "rayjobs": "RayJob", "rayservices": "RayService"}


class KubernetesDouble:
    """`tokens` are the valid tokens, `rights` the namespaces of each user; "" means all namespaces."""

    def __init__(self) -> None:
        self.tokens: dict[str, dict[str, Any]] = {}
        self.rights: dict[str, set[str]] = {}
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {name: {} for name in RESOURCES}
        self.supports_audiences = True
        self.without_crds = False
        self.broken = False
        self.delay = 0.0
        self.reviews: list[tuple[str, str]] = []
        self.watches = 0
        self.lists = 0
        self.expire_next_watch = False
        """If True, the next watch fails with 410, as if its resource version were too old."""
        self._version = 1
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._generation = 0

    def grant(self, token: str, user: str, *namespaces: str, audiences: tuple[str, ...] = ("api",)) -> None:
        self.tokens[token] = {"username": user, "groups": ["system:authenticated"], "audiences": list(audiences)}
        self.rights[user] = set(namespaces)

    def put(self, resource: str, namespace: str, name: str, **content: Any) -> None:
        exists = (namespace, name) in self.objects[resource]
        self._version += 1
        created = {
            "apiVersion": "ray.io/v1",
            "kind": KINDS[resource],
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": "2026-11-15T19:18:08Z"}
            | content.pop("metadata", {})
            | {"resourceVersion": str(self._version)},
            **content,
        }
        self.objects[resource][namespace, name] = created
        self._events.append((self._version, "MODIFIED" if exists else "ADDED", created))

    def delete(self, resource: str, namespace: str, name: str) -> None:
        deleted = self.objects[resource].pop((namespace, name))
        self._version += 1
        deleted["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, "DELETED", deleted))

    def cut_watches(self) -> None:
        """Abort the connections of all watches."""
        self._generation += 1

    async def review_token(self, request: Request) -> Response:
        if failure := await self._failure():
            return failure
        spec = (await request.json())["spec"]
        self.reviews.append(("token", spec["token"]))
        user = self.tokens.get(spec["token"])
        requested = spec.get("audiences") or ["api"]
        audiences = sorted(set(requested) & set(user["audiences"])) if user else []
        if not user or not audiences:
            status: dict[str, Any] = {"user": {}, "error": "[invalid bearer token, token audiences do not match]"}
        else:
            identity = {"username": user["username"], "uid": "u-1", "groups": user["groups"]}
            status = {"authenticated": True, "user": identity} | (
                {"audiences": audiences} if self.supports_audiences else {}
            )
        return JSONResponse({"kind": "TokenReview", "spec": spec, "status": status}, 201)

    async def review_access(self, request: Request) -> Response:
        if failure := await self._failure():
            return failure
        spec = (await request.json())["spec"]
        attributes = spec["resourceAttributes"]
        assert (attributes["group"], attributes["resource"], attributes["verb"]) == ("ray.io", "rayclusters", "get")
        self.reviews.append((spec["user"], attributes["namespace"]))
        granted = self.rights.get(spec["user"], set())
        status: dict[str, Any] = {"allowed": bool({"", attributes["namespace"]} & granted)}
        return JSONResponse({"kind": "SubjectAccessReview", "spec": spec, "status": status}, 201)

    async def resources(self, request: Request) -> Response:
        resource, namespace = request.path_params["resource"], request.path_params.get("namespace")
        if failure := await self._failure():
            return failure
        if self.without_crds or resource not in RESOURCES:
            return Response("404 page not found\n", 404, media_type="text/plain")
        if request.query_params.get("watch") == "true":
            self.watches += 1
            since = int(request.query_params["resourceVersion"])
            return StreamingResponse(self._changes(resource, namespace, since), media_type="application/json")
        self.lists += 1
        items = [o for (ns, _), o in self.objects[resource].items() if namespace in (None, ns)]
        metadata = {"resourceVersion": str(self._version)}
        return JSONResponse({"kind": f"{KINDS[resource]}List", "metadata": metadata, "items": items})

    async def _changes(self, resource: str, namespace: str | None, since: int) -> AsyncIterator[str]:
        generation = self._generation
        if self.expire_next_watch:
            self.expire_next_watch = False
            expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            yield json.dumps({"type": "ERROR", "object": expired}) + "\n"
            return
        while generation == self._generation:
            for version, kind, changed in self._events:
                in_scope = changed["kind"] == KINDS[resource] and namespace in (None, changed["metadata"]["namespace"])
                if version > since and in_scope:
                    yield json.dumps({"type": kind, "object": changed}) + "\n"
            since = self._version
            await asyncio.sleep(0.02)
        raise ConnectionError("aborted by the test")

    async def _failure(self) -> Response | None:
        await asyncio.sleep(self.delay)
        if self.broken:
            return JSONResponse({"kind": "Status", "code": 500, "message": "etcd is unavailable"}, 500)
        return None

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/apis/authentication.k8s.io/v1/tokenreviews", self.review_token, methods=["POST"]),
                Route("/apis/authorization.k8s.io/v1/subjectaccessreviews", self.review_access, methods=["POST"]),
                Route("/apis/ray.io/v1/{resource}", self.resources),
                Route("/apis/ray.io/v1/namespaces/{namespace}/{resource}", self.resources),
            ]
        )


@contextmanager
def run_app(app: Any) -> Iterator[str]:
    """Run an application on a free port in a thread, and yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def kubeconfig(path: Path, server: str) -> Path:
    """Write a kubeconfig, as JSON, which is valid YAML."""
    config = {
        "clusters": [{"name": "double", "cluster": {"server": server}}],
        "users": [{"name": "us", "user": {"token": "of-the-server"}}],
        "contexts": [{"name": "here", "context": {"cluster": "double", "user": "us"}}],
        "current-context": "here",
    }
    path.write_text(json.dumps(config))
    return path
