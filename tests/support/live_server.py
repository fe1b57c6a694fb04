"""A server with a live cluster: the head is a double, with or without a double of Kubernetes."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import SessionRef
from support.head_double import HeadDouble
from support.kubernetes_double import KubernetesDouble, kubeconfig, run_app
from support.recorded_sample import settings_for
from support.two_namespaces import serve_two_namespaces, store_live_session

REF = SessionRef.checked("default", "alive", "session_2026-11-16_00-00-00_000000_1")
LIVE = "/s/default/alive/live"
TASKS = f"{LIVE}/api/v0/tasks"
TOKEN = "token-of-the-cluster"


def register_head(directory: Path, address: str) -> None:
    store_live_session(directory, address, REF)


@contextmanager
def serve_with_head(directory: Path, head: HeadDouble, **settings: Any) -> Iterator[TestClient]:
    """Serve a live cluster outside of Kubernetes."""
    with run_app(head.app()) as address:
        register_head(directory, address)
        with serve_two_namespaces(directory, live=True, **settings) as client:
            yield client


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def run_live_server(directory: Path, **settings: Any) -> Iterator[str]:
    """Run the server on a port, for tests of connections."""
    app = create_app(dataclasses.replace(settings_for(directory), index_ahead=False, live=True, **settings))
    with run_app(app) as address:
        yield address


@contextmanager
def serve_in_kubernetes(
    directory: Path, head: HeadDouble, service: str, **settings: Any
) -> Iterator[tuple[TestClient, Any]]:
    """Serve a cluster whose head is reached through the Kubernetes API, which consumes `Authorization`."""
    double = KubernetesDouble()
    prefix = f"/api/v1/namespaces/default/services/{service}:dashboard/proxy"
    api, heads = double.app(), head.app(prefix)

    async def api_and_heads(scope: Any, receive: Any, send: Any) -> None:
        if not scope.get("path", "").startswith("/api/v1/"):
            await api(scope, receive, send)
            return
        assert dict(scope["headers"])[b"authorization"] == b"Bearer of-the-server"
        headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        await heads({**scope, "headers": headers}, receive, send)

    with run_app(api_and_heads) as address:
        config = str(kubeconfig(directory / "kubeconfig", address))
        with serve_two_namespaces(
            directory, live=True, kubeconfigs=config, use_kubernetes_proxy=True, **settings
        ) as client:
            yield client, double


def cluster_state(client: TestClient, cluster: str) -> str | None:
    rows = client.get("/api/history/clusters").json()["clusters"]
    return next((row["state"] for row in rows if row["cluster"] == cluster), None)
