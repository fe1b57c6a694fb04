"""Ray's resources are followed through all that can happen to a watch; against a double of the Kubernetes API."""

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

from guarded import guarded
from kubernetes_double import KubernetesDouble, kubeconfig, running
from rayhistory.kubeapi import KubeApi, find_kubernetes
from rayhistory.layout import Layout
from rayhistory.live import discovery as watching
from rayhistory.live.discovery import Discovery
from rayhistory.live.proxy import LiveProxy
from rayhistory.live.resources import cluster_of, owner_of
from rayhistory.server.catalogue import LIVE, Catalogue
from rayhistory.server.livesessions import LiveSessions
from rayhistory.server.resolve import Selection
from rayhistory.settings import Settings
from rayhistory.storage.local import LocalStore

HEAD: dict[str, Any] = {"status": {"head": {"serviceName": "head-svc"}}}


@pytest.fixture
def double() -> KubernetesDouble:
    return KubernetesDouble()


@pytest.fixture
def api(double: KubernetesDouble, tmp_path: Path) -> Iterator[str]:
    with running(double.app()) as address:
        yield str(kubeconfig(tmp_path / "kubeconfig", address))


def follow(config: str, work: Callable[[Discovery, KubeApi], Awaitable[None]], *namespaces: str) -> None:
    async def whole() -> None:
        kubernetes = find_kubernetes(Settings(kubeconfigs=config))
        assert kubernetes
        found = Discovery(kubernetes, namespaces)
        found.start()
        try:
            async with asyncio.timeout(60):
                await found.listed()
                await work(found, kubernetes)
        finally:
            await found.close()
            await kubernetes.close()

    asyncio.run(whole())


async def eventually(test: Callable[[], Any]) -> None:
    while not test():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def names(found: Discovery) -> set[str]:
    return {cluster.name for cluster in found.clusters()}


def test_clusters_come_and_go(api: str, double: KubernetesDouble) -> None:
    double.put("rayclusters", "a", "first", **HEAD)

    async def work(found: Discovery, _: KubeApi) -> None:
        assert names(found) == {"first"}
        double.put("rayclusters", "b", "second.with.dots")
        await eventually(lambda: names(found) == {"first", "second.with.dots"})
        assert not found.cluster("b", "second.with.dots").service  # type: ignore[union-attr]
        double.put("rayclusters", "b", "second.with.dots", **HEAD)
        await eventually(lambda: found.cluster("b", "second.with.dots").service == "head-svc")  # type: ignore[union-attr]
        double.delete("rayclusters", "a", "first")
        await eventually(lambda: names(found) == {"second.with.dots"})
        assert double.lists == 3

    follow(api, work)


def test_a_watch_that_breaks_off_is_taken_up_where_it_was(api: str, double: KubernetesDouble) -> None:
    double.put("rayclusters", "a", "first")

    async def work(found: Discovery, _: KubeApi) -> None:
        await eventually(lambda: double.watches == 3)
        double.cut_watches()
        double.delete("rayclusters", "a", "first")
        double.put("rayclusters", "a", "meanwhile")
        await eventually(lambda: names(found) == {"meanwhile"})
        assert double.lists == 3

    follow(api, work)


def test_a_version_that_is_too_old_means_listing_again(api: str, double: KubernetesDouble) -> None:
    async def work(found: Discovery, _: KubeApi) -> None:
        await eventually(lambda: double.watches == 3)
        double.forgotten = True
        double.cut_watches()
        await eventually(lambda: double.lists == 4)
        double.put("rayclusters", "a", "after")
        await eventually(lambda: names(found) == {"after"})

    follow(api, work)


@pytest.mark.parametrize("answer", [Response(b""), JSONResponse({"code": 410, "message": "too old"}, 410)])
def test_an_api_that_ends_every_watch_at_once_is_not_asked_without_pause(tmp_path: Path, answer: Response) -> None:
    watches: list[float] = []

    async def resources(request: Request) -> Response:
        if request.query_params.get("watch") == "true":
            watches.append(time.monotonic())
            return answer
        return JSONResponse({"metadata": {"resourceVersion": "5"}, "items": []})

    async def work(found: Discovery, _: KubeApi) -> None:
        await eventually(lambda: len(watches) >= 3)

    with running(Starlette(routes=[Route("/apis/ray.io/v1/rayclusters", resources)])) as address:
        follow(str(kubeconfig(tmp_path / "kubeconfig", address)), work)
    assert all(later - earlier > 0.2 for earlier, later in pairwise(watches))


def test_while_the_api_is_away_what_was_known_stays_known(
    api: str, double: KubernetesDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.put("rayclusters", "a", "first")

    async def work(found: Discovery, _: KubeApi) -> None:
        await eventually(lambda: double.watches == 3)
        double.broken = True
        double.cut_watches()
        await eventually(lambda: "etcd is away" in str(found.problem))
        assert names(found) == {"first"}
        double.broken = False
        double.put("rayclusters", "a", "second")
        await eventually(lambda: names(found) == {"first", "second"})
        await eventually(lambda: found.problem is None)

    follow(api, work)
    assert "Ray's resources cannot be watched" in caplog.messages


def test_without_the_crds_there_are_no_clusters_until_they_are_installed(
    api: str, double: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_NOT_INSTALLED", 0.2)
    double.without_crds = True

    async def work(found: Discovery, _: KubeApi) -> None:
        assert found.clusters() == []
        assert found.problem
        double.without_crds = False
        double.put("rayclusters", "a", "first")
        await eventually(lambda: names(found) == {"first"})

    follow(api, work)


def test_only_the_namespaces_that_were_named_are_watched(api: str, double: KubernetesDouble) -> None:
    for namespace in ("a", "b", "c"):
        double.put("rayclusters", namespace, f"in-{namespace}")

    async def work(found: Discovery, _: KubeApi) -> None:
        assert names(found) == {"in-a", "in-b"}

    follow(api, work, "a", "b")


def test_a_service_has_the_cluster_that_serves_and_a_job_its_own(api: str, double: KubernetesDouble) -> None:
    for name in ("old", "new", "of-job", "by-label"):
        double.put("rayclusters", "a", name, **HEAD)
    double.put(
        "rayservices", "a", "web",
        status={"activeServiceStatus": {"rayClusterName": "old"}, "pendingServiceStatus": {"rayClusterName": "new"}},
    )  # fmt: skip
    double.put("rayjobs", "a", "nightly", status={"rayClusterName": "of-job"})
    labels = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "weekly"}
    double.put("rayclusters", "a", "by-label", metadata={"labels": labels}, **HEAD)

    async def work(found: Discovery, _: KubeApi) -> None:
        def owned(kind: str, name: str) -> str | None:
            cluster = found.owned("a", kind, name)
            return cluster.name if cluster else None

        assert owned("rayservice", "web") == "old"
        assert owned("rayjob", "nightly") == "of-job"
        assert owned("rayjob", "weekly") == "by-label"
        assert owned("rayjob", "web") is None
        double.put("rayservices", "a", "web", status={"activeServiceStatus": {"rayClusterName": "new"}})
        await eventually(lambda: owned("rayservice", "web") == "new")

    follow(api, work)


def test_a_head_is_asked_by_the_name_of_its_service_in_its_own_namespace(
    api: str, double: KubernetesDouble, tmp_path: Path
) -> None:
    ports = [{"name": "gcs", "containerPort": 6379}, {"name": "dashboard", "containerPort": 9999}]
    template = {"headGroupSpec": {"template": {"spec": {"containers": [{"ports": ports}]}}}}
    double.put("rayclusters", "team-a", "plain", **HEAD)
    double.put("rayclusters", "team-b", "plain", spec=template, **HEAD)
    double.put("rayclusters", "team-a", "forged", status={"head": {"serviceName": "evil.example/x#"}})
    double.put("rayclusters", "team-a", "starting")
    double.put("rayclusters", "team-a", "suspended", spec={"suspend": True}, **HEAD)

    async def work(found: Discovery, kubernetes: KubeApi) -> None:
        proxy = LiveProxy()
        catalogue = Catalogue(LocalStore(tmp_path), Layout(""), 120)

        async def url(namespace: str, name: str, session: str = LIVE, *, through: bool = False) -> str | None:
            live = LiveSessions(catalogue, found, kubernetes, proxy, through_api=through)
            head = await live.head(Selection(namespace, name, session))
            return head.target.url if head else None

        assert await url("team-a", "plain") == "http://head-svc.team-a.svc:8265"
        assert await url("team-b", "plain") == "http://head-svc.team-b.svc:9999"
        path = "/api/v1/namespaces/team-b/services/head-svc:dashboard/proxy"
        assert await url("team-b", "plain", through=True) == kubernetes.server + path
        for name in ("forged", "starting", "suspended", "unknown"):
            assert await url("team-a", name) is None
        assert await url("team-a", "plain", "session_2026-11-15_20-00-00_000000_1") is None
        assert await url("team-a", "plain", "latest") is None

    follow(api, work)


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "name", "namespace", "head", "serviceName", "ownerReferences",
                         "labels", "headGroupSpec", "template", "containers", "ports", "controller", "kind"]),
        inner, max_size=5,
    ),
    max_leaves=15,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _anything))
def test_resources_of_any_shape_are_read(resource: dict[str, Any]) -> None:
    cluster = cluster_of(resource)
    assert "/" not in cluster.service
    assert isinstance(owner_of(resource).cluster, str)


def test_the_server_works_without_kubernetes_answering(tmp_path: Path, double: KubernetesDouble) -> None:
    """The store still opens."""
    double.broken = True
    with running(double.app()) as address:
        config = str(kubeconfig(tmp_path / "kubeconfig", address))
        with guarded(tmp_path, live=True, kubeconfigs=config) as client:
            assert len(client.get("/clusters").json()) == 3
            assert client.get("/readyz").status_code == 200
            until = time.monotonic() + 30
            while (told := client.get("/api/history/clusters").json())["problem"] is None:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert "etcd is away" in told["problem"]
            assert {row["state"] for row in told["clusters"]} == {"gone"}
            assert "data" in client.get("/s/default/sample/live/api/v0/tasks").json()
