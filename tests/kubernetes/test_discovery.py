"""Discovery of RayClusters, RayJobs and RayServices on a real API server."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.live import kubernetes_watch
from support.kubernetes_real import ControlPlane
from support.two_namespaces import serve_two_namespaces

CRD = "rayclusters.ray.io"


class Relay:
    """A connection to the API server that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[socket.socket] = []
        self.blocked = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.blocked:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open = []

    def close(self) -> None:
        self._listener.close()
        self.cut()


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while block := source.recv(65536):
            target.sendall(block)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(kubernetes: ControlPlane, directory: Path) -> Iterator[tuple[TestClient, Relay]]:
    relay = Relay(int(kubernetes.url.rpartition(":")[2]))
    config = json.loads(kubernetes.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    (directory / "kubeconfig").write_text(json.dumps(config))
    try:
        with serve_two_namespaces(directory, kubeconfigs=str(directory / "kubeconfig")) as client:
            yield client, relay
    finally:
        relay.close()


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def cluster(name: str, **spec: Any) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0"}]}}
    return resource("RayCluster", name, {"headGroupSpec": {"rayStartParams": {}, "template": pod}, **spec})


def states(client: TestClient) -> dict[str, str]:
    rows = client.get("/api/history/clusters").json()["clusters"]
    return {row["cluster"]: row["state"] for row in rows}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def set_status(kubernetes: ControlPlane, kind: str, name: str, status: dict[str, Any]) -> None:
    kubernetes.kubectl(
        "patch", kind, name, "--type=merge", "--subresource=status", "-p", json.dumps({"status": status})
    )


@pytest.fixture(autouse=True)
def remove_resources(kubernetes: ControlPlane) -> Iterator[None]:
    yield
    kubernetes.run("delete", "rayclusters,rayjobs,rayservices", "--all", "-n", "default")


def test_clusters_are_discovered_and_updated(kubernetes: ControlPlane, tmp_path: Path) -> None:
    kubernetes.apply(cluster("before"))
    with serving(kubernetes, tmp_path) as (client, _):
        eventually(lambda: states(client).get("before") == "starting")
        set_status(kubernetes, "raycluster", "before", {"head": {"serviceName": "before-head-svc"}})
        eventually(lambda: states(client).get("before") == "running")
        kubernetes.apply(cluster("with.dots", suspend=True))
        eventually(lambda: states(client).get("with.dots") == "suspended")
        kubernetes.kubectl("delete", "raycluster", "before")
        eventually(lambda: "before" not in states(client))
        assert states(client)["sample"] == "gone"
        assert [each["name"] for each in client.get("/clusters").json() if each["sessionName"] == "live"] == [
            "with.dots"
        ]


def test_watch_resumes_after_a_lost_connection(kubernetes: ControlPlane, tmp_path: Path) -> None:
    kubernetes.apply(cluster("first"))
    with serving(kubernetes, tmp_path) as (client, relay):
        eventually(lambda: "first" in states(client))
        relay.blocked = True
        relay.cut()
        eventually(lambda: client.get("/api/history/clusters").json()["problem"] is not None)
        assert "first" in states(client)
        kubernetes.kubectl("delete", "raycluster", "first")
        kubernetes.apply(cluster("meanwhile"))
        relay.blocked = False
        eventually(lambda: states(client).get("meanwhile") == "starting" and "first" not in states(client))
        assert client.get("/api/history/clusters").json()["problem"] is None


def test_owners_lead_to_their_clusters(kubernetes: ControlPlane, tmp_path: Path) -> None:
    body: dict[str, Any] = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": []}}}}
    kubernetes.apply(
        cluster("old"), cluster("new"), cluster("of-job"),
        resource("RayService", "web", {"rayClusterConfig": body}),
        resource("RayJob", "nightly", {"rayClusterSpec": body}),
    )  # fmt: skip
    active = {"activeServiceStatus": {"rayClusterName": "old"}, "pendingServiceStatus": {"rayClusterName": "new"}}
    set_status(kubernetes, "rayservice", "web", active)
    set_status(kubernetes, "rayjob", "nightly", {"rayClusterName": "of-job"})
    with serving(kubernetes, tmp_path) as (client, _):
        discovery = client.app.state.live.discovery  # type: ignore[attr-defined]

        def owned(kind: str, name: str) -> str | None:
            owner = discovery.owned_cluster("default", kind, name)
            return owner.name if owner else None

        eventually(lambda: owned("rayservice", "web") == "old" and owned("rayjob", "nightly") == "of-job")
        set_status(kubernetes, "rayservice", "web", {"activeServiceStatus": {"rayClusterName": "new"}})
        eventually(lambda: owned("rayservice", "web") == "new")


def test_clusters_are_discovered_once_the_crd_is_installed(
    kubernetes: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_watch, "_NOT_INSTALLED_INTERVAL_S", 0.5)
    crds = Path(__file__).parent / "crds"
    kubernetes.kubectl("delete", "crd", CRD)
    try:
        with serving(kubernetes, tmp_path) as (client, _):
            eventually(lambda: client.get("/api/history/clusters").json()["problem"] is not None)
            assert len(client.get("/clusters").json()) == 3
            kubernetes.kubectl("apply", "-f", str(crds))
            kubernetes.kubectl("wait", "--for=condition=established", "--timeout=60s", f"crd/{CRD}")
            eventually(lambda: kubernetes.run("apply", "-f", "-", stdin=json.dumps(cluster("after"))).returncode == 0)
            eventually(lambda: states(client).get("after") == "starting")
    finally:
        kubernetes.kubectl("apply", "-f", str(crds))
        kubernetes.kubectl("wait", "--for=condition=established", "--timeout=60s", f"crd/{CRD}")
