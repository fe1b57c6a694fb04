"""A server beside a cluster that is alive: its head is a double, outside of Kubernetes or behind a double of that."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from guarded import guarded, keep_live
from head_double import HeadDouble
from kubernetes_double import KubernetesDouble, kubeconfig, running
from rayhistory.layout import SessionRef
from rayhistory.server.app import create_app
from recorded_sample import settings_for

REF = SessionRef.checked("default", "alive", "session_2026-11-16_00-00-00_000000_1")
LIVE = "/s/default/alive/live"
TASKS = f"{LIVE}/api/v0/tasks"
TOKEN = "token-of-the-cluster"


def register(directory: Path, address: str) -> None:
    keep_live(directory, address, REF)


@contextmanager
def beside(directory: Path, head: HeadDouble, **settings: Any) -> Iterator[TestClient]:
    """A server beside a cluster outside of Kubernetes."""
    with running(head.app()) as address:
        register(directory, address)
        with guarded(directory, live=True, **settings) as client:
            yield client


def eventually(test: Any) -> None:
    until = time.monotonic() + 30
    while not test():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextmanager
def served(directory: Path, **settings: Any) -> Iterator[str]:
    """The whole server on a port: what happens to connections is seen there only."""
    app = create_app(dataclasses.replace(settings_for(directory), index_ahead=False, live=True, **settings))
    with running(app) as address:
        yield address


@contextmanager
def in_kubernetes(directory: Path, head: HeadDouble, service: str, **settings: Any) -> Iterator[tuple[TestClient, Any]]:
    """A server that reaches heads through the Kubernetes API, which keeps `Authorization` for itself."""
    double = KubernetesDouble()
    prefix = f"/api/v1/namespaces/default/services/{service}:dashboard/proxy"
    api, heads = double.app(), head.app(prefix)

    async def both(scope: Any, receive: Any, send: Any) -> None:
        if not scope.get("path", "").startswith("/api/v1/"):
            await api(scope, receive, send)
            return
        assert dict(scope["headers"])[b"authorization"] == b"Bearer of-the-server"
        headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        await heads({**scope, "headers": headers}, receive, send)

    with running(both) as address:
        config = str(kubeconfig(directory / "kubeconfig", address))
        with guarded(directory, live=True, kubeconfigs=config, use_kubernetes_proxy=True, **settings) as client:
            yield client, double


def state_of(client: TestClient, cluster: str) -> str | None:
    rows = client.get("/api/history/clusters").json()["clusters"]
    return next((row["state"] for row in rows if row["cluster"] == cluster), None)
