"""Discovery follows Ray's resources through every failure of a watch, against a double of the Kubernetes API."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rayhistory.kubernetes_api import KubernetesApi, open_kubernetes
from rayhistory.live import kubernetes_watch
from rayhistory.live.head_proxy import HeadProxy
from rayhistory.live.kubernetes_resources import parse_cluster, parse_owner
from rayhistory.live.kubernetes_watch import ClusterDiscovery
from rayhistory.networks import Networks
from rayhistory.server.live_sessions import LiveSessions
from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.sessions.selection import LIVE, Selection
from rayhistory.settings import Settings
from rayhistory.storage.local import LocalStore
from support.kubernetes_double import KubernetesDouble, kubeconfig, run_app
from support.two_namespaces import serve_two_namespaces

pytestmark = pytest.mark.slow

HEAD: dict[str, Any] = {"status": {"head": {"serviceName": "head-svc"}}}


@pytest.fixture
def double() -> KubernetesDouble:
    return KubernetesDouble()


@pytest.fixture
def api(double: KubernetesDouble, tmp_path: Path) -> Iterator[str]:
    with run_app(double.app()) as address:
        yield str(kubeconfig(tmp_path / "kubeconfig", address))


def run_discovery(
    config: str, work: Callable[[ClusterDiscovery, KubernetesApi], Awaitable[None]], *namespaces: str
) -> None:
    async def run() -> None:
        kubernetes = open_kubernetes(Settings(kubeconfigs=config))
        assert kubernetes
        discovery = ClusterDiscovery(kubernetes, namespaces)
        discovery.start()
        try:
            async with asyncio.timeout(60):
                for watch in discovery._watches():
                    await watch.listed.wait()
                await work(discovery, kubernetes)
        finally:
            await discovery.close()
            await kubernetes.close()

    asyncio.run(run())


async def eventually(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def names(discovery: ClusterDiscovery) -> set[str]:
    return {cluster.name for cluster in discovery.clusters()}


def test_added_changed_and_deleted_clusters_are_followed(api: str, double: KubernetesDouble) -> None:
    double.put("rayclusters", "a", "first", **HEAD)

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        assert names(discovery) == {"first"}
        double.put("rayclusters", "b", "second.with.dots")
        await eventually(lambda: names(discovery) == {"first", "second.with.dots"})
        assert not discovery.cluster("b", "second.with.dots").service  # type: ignore[union-attr]
        double.put("rayclusters", "b", "second.with.dots", **HEAD)
        await eventually(lambda: discovery.cluster("b", "second.with.dots").service == "head-svc")  # type: ignore[union-attr]
        double.delete("rayclusters", "a", "first")
        await eventually(lambda: names(discovery) == {"second.with.dots"})
        assert double.lists == 3

    run_discovery(api, work)


def test_aborted_watch_resumes_at_its_version(api: str, double: KubernetesDouble) -> None:
    double.put("rayclusters", "a", "first")

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        await eventually(lambda: double.watches == 3)
        double.cut_watches()
        double.delete("rayclusters", "a", "first")
        double.put("rayclusters", "a", "meanwhile")
        await eventually(lambda: names(discovery) == {"meanwhile"})
        assert double.lists == 3

    run_discovery(api, work)


@pytest.mark.slow
def test_expired_version_lists_again(api: str, double: KubernetesDouble) -> None:
    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        await eventually(lambda: double.watches == 3)
        double.expire_next_watch = True
        double.cut_watches()
        await eventually(lambda: double.lists == 4)
        double.put("rayclusters", "a", "after")
        await eventually(lambda: names(discovery) == {"after"})

    run_discovery(api, work)


@pytest.mark.slow
@pytest.mark.parametrize("response", [Response(b""), JSONResponse({"code": 410, "message": "too old"}, 410)])
def test_api_that_ends_every_watch_at_once_is_retried_with_backoff(tmp_path: Path, response: Response) -> None:
    watches: list[float] = []

    async def resources(request: Request) -> Response:
        if request.query_params.get("watch") == "true":
            watches.append(time.monotonic())
            return response
        return JSONResponse({"metadata": {"resourceVersion": "5"}, "items": []})

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        await eventually(lambda: len(watches) >= 3)

    with run_app(Starlette(routes=[Route("/apis/ray.io/v1/rayclusters", resources)])) as address:
        run_discovery(str(kubeconfig(tmp_path / "kubeconfig", address)), work)
    assert all(later - earlier > 0.2 for earlier, later in pairwise(watches))


@pytest.mark.slow
def test_last_known_clusters_stay_while_the_api_is_unavailable(
    api: str, double: KubernetesDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.put("rayclusters", "a", "first")

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        await eventually(lambda: double.watches == 3)
        double.broken = True
        double.cut_watches()
        await eventually(lambda: "etcd is unavailable" in str(discovery.problem))
        assert names(discovery) == {"first"}
        double.broken = False
        double.put("rayclusters", "a", "second")
        await eventually(lambda: names(discovery) == {"first", "second"})
        await eventually(lambda: discovery.problem is None)

    run_discovery(api, work)
    assert "Kubernetes watch failed, retrying" in caplog.messages


def test_crds_that_are_installed_later_are_found(
    api: str, double: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_watch, "_NOT_INSTALLED_INTERVAL_S", 0.2)
    double.without_crds = True

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        assert discovery.clusters() == []
        assert discovery.problem
        double.without_crds = False
        double.put("rayclusters", "a", "first")
        await eventually(lambda: names(discovery) == {"first"})

    run_discovery(api, work)


def test_only_configured_namespaces_are_watched(api: str, double: KubernetesDouble) -> None:
    for namespace in ("a", "b", "c"):
        double.put("rayclusters", namespace, f"in-{namespace}")

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        assert names(discovery) == {"in-a", "in-b"}

    run_discovery(api, work, "a", "b")


def test_owner_is_resolved_to_its_active_cluster(api: str, double: KubernetesDouble) -> None:
    for name in ("old", "new", "of-job", "by-label"):
        double.put("rayclusters", "a", name, **HEAD)
    double.put(
        "rayservices", "a", "web",
        status={"activeServiceStatus": {"rayClusterName": "old"}, "pendingServiceStatus": {"rayClusterName": "new"}},
    )  # fmt: skip
    double.put("rayjobs", "a", "nightly", status={"rayClusterName": "of-job"})
    labels = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "weekly"}
    double.put("rayclusters", "a", "by-label", metadata={"labels": labels}, **HEAD)

    async def work(discovery: ClusterDiscovery, _: KubernetesApi) -> None:
        def owned(kind: str, name: str) -> str | None:
            cluster = discovery.owned_cluster("a", kind, name)
            return cluster.name if cluster else None

        assert owned("rayservice", "web") == "old"
        assert owned("rayjob", "nightly") == "of-job"
        assert owned("rayjob", "weekly") == "by-label"
        assert owned("rayjob", "web") is None
        double.put("rayservices", "a", "web", status={"activeServiceStatus": {"rayClusterName": "new"}})
        await eventually(lambda: owned("rayservice", "web") == "new")

    run_discovery(api, work)


def test_head_address_is_its_service_in_its_namespace(api: str, double: KubernetesDouble, tmp_path: Path) -> None:
    ports = [{"name": "gcs", "containerPort": 6379}, {"name": "dashboard", "containerPort": 9999}]
    template = {"headGroupSpec": {"template": {"spec": {"containers": [{"ports": ports}]}}}}
    double.put("rayclusters", "team-a", "plain", **HEAD)
    double.put("rayclusters", "team-b", "plain", spec=template, **HEAD)
    double.put("rayclusters", "team-a", "forged", status={"head": {"serviceName": "evil.example/x#"}})
    double.put("rayclusters", "team-a", "starting")
    double.put("rayclusters", "team-a", "suspended", spec={"suspend": True}, **HEAD)

    async def work(discovery: ClusterDiscovery, kubernetes: KubernetesApi) -> None:
        proxy = HeadProxy()
        catalog = SessionCatalog(LocalStore(tmp_path), Layout(""), 120)

        async def url(namespace: str, name: str, session: str = LIVE, *, through: bool = False) -> str | None:
            live = LiveSessions(
                catalog, discovery, kubernetes, proxy, registered_networks=Networks((), ""), through_api=through
            )
            head = await live.head(Selection(namespace, name, session))
            return head.address.url if head else None

        assert await url("team-a", "plain") == "http://head-svc.team-a.svc:8265"
        assert await url("team-b", "plain") == "http://head-svc.team-b.svc:9999"
        path = "/api/v1/namespaces/team-b/services/head-svc:dashboard/proxy"
        assert await url("team-b", "plain", through=True) == kubernetes.server + path
        for name in ("forged", "starting", "suspended", "unknown"):
            assert await url("team-a", name) is None
        assert await url("team-a", "plain", "session_2026-11-15_20-00-00_000000_1") is None
        assert await url("team-a", "plain", "latest") is None

    run_discovery(api, work)


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "name", "namespace", "head", "serviceName", "ownerReferences",
                         "labels", "headGroupSpec", "template", "containers", "ports", "controller", "kind"]),
        inner, max_size=5,
    ),
    max_leaves=15,
)  # fmt: skip


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _anything))
def test_resources_of_any_shape_are_parsed(resource: dict[str, Any]) -> None:
    cluster = parse_cluster(resource)
    assert "/" not in cluster.service
    assert isinstance(parse_owner(resource).cluster, str)


@pytest.mark.slow
def test_server_works_while_kubernetes_is_unavailable(tmp_path: Path, double: KubernetesDouble) -> None:
    double.broken = True
    with run_app(double.app()) as address:
        config = str(kubeconfig(tmp_path / "kubeconfig", address))
        with serve_two_namespaces(tmp_path, live=True, kubeconfigs=config) as client:
            assert len(client.get("/clusters").json()) == 3
            assert client.get("/readyz").status_code == 200
            deadline = time.monotonic() + 30
            while (listed := client.get("/api/history/clusters").json())["problem"] is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert "etcd is unavailable" in listed["problem"]
            assert {row["state"] for row in listed["clusters"]} == {"gone"}
            assert "data" in client.get("/s/default/sample/live/api/v0/tasks").json()
