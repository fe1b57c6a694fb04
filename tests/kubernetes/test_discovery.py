"""Ray's resources on a real API server: found, followed, and found again when the connection was cut."""

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

from guarded import guarded
from kubernetes_real import ControlPlane
from rayhistory.live import discovery as watching

CRD = "rayclusters.ray.io"


class Line:
    """A connection to the API server that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[socket.socket] = []
        self.dead = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.dead:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open = []

    def close(self) -> None:
        self._listener.close()
        self.cut()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while block := source.recv(65536):
            target.sendall(block)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def served(kubernetes: ControlPlane, directory: Path) -> Iterator[tuple[TestClient, Line]]:
    line = Line(int(kubernetes.url.rpartition(":")[2]))
    config = json.loads(kubernetes.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{line.port}"
    (directory / "kubeconfig").write_text(json.dumps(config))
    try:
        with guarded(directory, kubeconfigs=str(directory / "kubeconfig")) as client:
            yield client, line
    finally:
        line.close()


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def cluster(name: str, **spec: Any) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0"}]}}
    return resource("RayCluster", name, {"headGroupSpec": {"rayStartParams": {}, "template": pod}, **spec})


def states(client: TestClient) -> dict[str, str]:
    rows = client.get("/api/history/clusters").json()["clusters"]
    return {row["cluster"]: row["state"] for row in rows}


def eventually(test: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not test():
        assert time.monotonic() < until
        time.sleep(0.05)


def set_status(kubernetes: ControlPlane, kind: str, name: str, status: dict[str, Any]) -> None:
    kubernetes.kubectl(
        "patch", kind, name, "--type=merge", "--subresource=status", "-p", json.dumps({"status": status})
    )


@pytest.fixture(autouse=True)
def tidy(kubernetes: ControlPlane) -> Iterator[None]:
    yield
    kubernetes.run("delete", "rayclusters,rayjobs,rayservices", "--all", "-n", "default")


def test_clusters_are_found_and_followed(kubernetes: ControlPlane, tmp_path: Path) -> None:
    kubernetes.apply(cluster("before"))
    with served(kubernetes, tmp_path) as (client, _):
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


def test_a_watch_is_taken_up_again_after_the_connection_was_cut(kubernetes: ControlPlane, tmp_path: Path) -> None:
    kubernetes.apply(cluster("first"))
    with served(kubernetes, tmp_path) as (client, line):
        eventually(lambda: "first" in states(client))
        line.dead = True
        line.cut()
        eventually(lambda: client.get("/api/history/clusters").json()["problem"] is not None)
        assert "first" in states(client)
        kubernetes.kubectl("delete", "raycluster", "first")
        kubernetes.apply(cluster("meanwhile"))
        line.dead = False
        eventually(lambda: states(client).get("meanwhile") == "starting" and "first" not in states(client))
        assert client.get("/api/history/clusters").json()["problem"] is None


def test_a_service_and_a_job_lead_to_their_clusters(kubernetes: ControlPlane, tmp_path: Path) -> None:
    body = {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": []}}}}
    kubernetes.apply(
        cluster("old"), cluster("new"), cluster("of-job"),
        resource("RayService", "web", {"rayClusterConfig": body}),
        resource("RayJob", "nightly", {"rayClusterSpec": body}),
    )  # fmt: skip
    active = {"activeServiceStatus": {"rayClusterName": "old"}, "pendingServiceStatus": {"rayClusterName": "new"}}
    set_status(kubernetes, "rayservice", "web", active)
    set_status(kubernetes, "rayjob", "nightly", {"rayClusterName": "of-job"})
    with served(kubernetes, tmp_path) as (client, _):
        found = client.app.state.live.discovery  # type: ignore[attr-defined]

        def owned(kind: str, name: str) -> str | None:
            owner = found.owned("default", kind, name)
            return owner.name if owner else None

        eventually(lambda: owned("rayservice", "web") == "old" and owned("rayjob", "nightly") == "of-job")
        set_status(kubernetes, "rayservice", "web", {"activeServiceStatus": {"rayClusterName": "new"}})
        eventually(lambda: owned("rayservice", "web") == "new")


def test_without_the_crd_the_server_works_and_finds_clusters_once_it_is_there(
    kubernetes: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_NOT_INSTALLED", 0.5)
    crds = Path(__file__).parent / "crds"
    kubernetes.kubectl("delete", "crd", CRD)
    try:
        with served(kubernetes, tmp_path) as (client, _):
            eventually(lambda: client.get("/api/history/clusters").json()["problem"] is not None)
            assert len(client.get("/clusters").json()) == 3
            kubernetes.kubectl("apply", "-f", str(crds))
            kubernetes.kubectl("wait", "--for=condition=established", "--timeout=60s", f"crd/{CRD}")
            eventually(lambda: kubernetes.run("apply", "-f", "-", stdin=json.dumps(cluster("after"))).returncode == 0)
            eventually(lambda: states(client).get("after") == "starting")
    finally:
        kubernetes.kubectl("apply", "-f", str(crds))
        kubernetes.kubectl("wait", "--for=condition=established", "--timeout=60s", f"crd/{CRD}")
