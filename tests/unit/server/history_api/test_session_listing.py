"""The list of sessions: filters, sort orders, pages and errors."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.diagnosis.diagnosis_product import PRODUCT as DIAGNOSIS
from rayhistory.errors import StoreUnavailable
from rayhistory.index.manifest import SCHEMA_VERSION, Manifest, SessionCounts
from rayhistory.index.products.product_manifest import ProductManifest, publish_product
from rayhistory.metric_columns.columns_product import PRODUCT
from rayhistory.server.app import create_app
from rayhistory.server.history_api import session_listing
from rayhistory.server.history_api.session_listing import utilization_lines
from rayhistory.sessions import Layout, SessionRef, StartRecord
from rayhistory.sessions.records import Closing
from rayhistory.sessions.ref import session_start_time
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import Listing, ObjectInfo

LAYOUT = Layout()
DAY = 86_400
MANY = 10_000


class CountingStore(LocalStore):
    """A directory that counts the listings of folders."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    async def list_folder(self, prefix: str) -> Listing:
        self.listed.append(prefix)
        return await super().list_folder(prefix)


class UnavailableStore(LocalStore):
    """A directory that is unavailable below some prefixes."""

    def __init__(self, root: Path, *unavailable: str) -> None:
        super().__init__(root)
        self.unavailable = unavailable

    async def list_folder(self, prefix: str) -> Listing:
        if prefix.startswith(self.unavailable):
            raise StoreUnavailable("the store is unavailable")
        return await super().list_folder(prefix)

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix.startswith(self.unavailable):
            raise StoreUnavailable("the store is unavailable")
        async for info in super().list_all(prefix, start_after):
            yield info


def session_of(seconds: float) -> str:
    return time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_1", time.gmtime(seconds))


def store_sessions(root: Path, *refs: SessionRef) -> None:
    for ref in refs:
        path = root / LAYOUT.metadata_key(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        started = session_start_time(ref.session)
        if started:
            os.utime(path, (started.timestamp(), started.timestamp()))


def serve(directory: Path, store: LocalStore) -> TestClient:
    flags = {"setting_cache_dir": str(directory / "cache"), "setting_index_ahead": "false"}
    return TestClient(create_app(resolve("historyserver", flags, {})[0], store))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory, now = tmp_path_factory.mktemp("home"), time.time()
    store_sessions(
        directory / "store",
        SessionRef("ml", "beta", session_of(now - 60), "rayjob", "nightly"),
        SessionRef("ml", "alpha", session_of(now - 2 * 3600), "rayjob", "weekly"),
        SessionRef("ml", "gamma", session_of(now - 3 * DAY), "rayservice", "shop"),
        SessionRef("dev", "delta", session_of(now - 40 * DAY)),
        SessionRef("dev", "epsilon", "session_2020-01-31_23-59-59_000000_1"),
    )
    with serve(directory, LocalStore(directory / "store")) as client:
        yield client


def clusters(client: TestClient, **params: Any) -> list[str]:
    response = client.get("/home.json", params=params)
    assert response.status_code == 200, response.text
    return [row["cluster"] for row in response.json()["sessions"]]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["beta", "alpha", "gamma", "delta", "epsilon"]),
        ({"q": "NIGHT"}, ["beta"]),
        ({"q": "ml a"}, ["beta", "alpha", "gamma"]),
        ({"namespace": "dev"}, ["delta", "epsilon"]),
        ({"state": "running"}, []),
        ({"owner": "rayjob"}, ["beta", "alpha"]),
        ({"owner": "RayService"}, ["gamma"]),
        ({"owner": "none"}, ["delta", "epsilon"]),
        ({"owner": "rayjob/weekly"}, ["alpha"]),
        ({"since": "1h"}, ["beta"]),
        ({"since": "7d"}, ["beta", "alpha", "gamma"]),
        ({"to": "2020-01-31"}, ["epsilon"]),
        ({"to": "2020-01-30"}, []),
        ({"to": "9999-12-31"}, ["beta", "alpha", "gamma", "delta", "epsilon"]),
        ({"from": "2020-01-31", "to": "2020-02-01T00:00:00+01:00"}, []),
        ({"from": "1580511599000", "to": "2020-02-01"}, ["epsilon"]),
        ({"sort": "cluster"}, ["alpha", "beta", "delta", "epsilon", "gamma"]),
        ({"sort": "-cluster", "namespace": "dev"}, ["epsilon", "delta"]),
        ({"sort": "started", "owner": "rayjob"}, ["alpha", "beta"]),
        ({"sort": "namespace"}, ["delta", "epsilon", "beta", "alpha", "gamma"]),
        ({"since": "7d", "owner": "rayjob", "q": "alpha"}, ["alpha"]),
    ],
)
def test_filters_of_the_url_select_the_sessions(
    client: TestClient, params: dict[str, str], expected: list[str]
) -> None:
    assert clusters(client, **params) == expected
    page = client.get("/home", params=params).text
    assert [name for name in ("beta", "alpha", "gamma", "delta", "epsilon") if f">{name}</a>" in page] == [
        name for name in ("beta", "alpha", "gamma", "delta", "epsilon") if name in expected
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("state=asleep", "invalid state 'asleep': use one of running, ended, vanished"),
        ("owner=me", "invalid owner 'me': use rayjob, rayservice"),
        ("since=yesterday", "use a number of hours or days"),
        ("since=7", "use a number of hours or days"),
        ("from=tomorrow", "invalid from 'tomorrow': use a date or a time"),
        ("to=2026-02-30", "use a date or a time"),
        ("to=10000-01-01", "use a date or a time"),
        ("sort=size", "invalid sort 'size': use one of"),
        ("page=0", "use a number from 1"),
        ("page=-1", "use a number from 1"),
        ("page=two", "use a number from 1"),
    ],
)
def test_invalid_filter_is_reported(client: TestClient, query: str, message: str) -> None:
    """Ignoring the filter would show the wrong sessions."""
    response = client.get(f"/home.json?{query}")
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    page = client.get(f"/home?{query}")
    assert page.status_code == 400
    assert message.partition("use")[2] in page.text


def test_empty_filter_is_ignored(client: TestClient) -> None:
    """A form sends all its fields."""
    assert (
        len(clusters(client, q="", namespace="", owner="", since="", **{"from": "", "to": ""}, sort="", page="")) == 5
    )


def test_json_has_the_values_of_the_page(client: TestClient) -> None:
    body = client.get("/home.json", params={"q": "beta"}).json()
    (row,) = body["sessions"]
    assert (row["owner_kind"], row["owner_name"], row["state"]) == ("rayjob", "nightly", "ended")
    assert row["counts"] is None
    assert row["dashboard"] in body["dashboards"]
    assert (body["namespaces"], body["total"], body["next"]) == (["dev", "ml"], 1, None)


@pytest.mark.slow
def test_only_sessions_of_the_page_are_read_from_the_store(tmp_path: Path) -> None:
    names = [session_of(1_700_000_000 + 1_000 * number) for number in range(MANY)]
    folder = (tmp_path / "store" / LAYOUT.metadata_key(SessionRef("ml", "many", names[0]))).parent
    folder.mkdir(parents=True)
    for name in names:
        (tmp_path / "store" / LAYOUT.metadata_key(SessionRef("ml", "many", name))).touch()
    store = CountingStore(tmp_path / "store")
    with serve(tmp_path, store) as client:
        first = client.get("/home.json").json()
        assert first["total"] == MANY
        assert [row["session"] for row in first["sessions"]] == names[:-51:-1]
        assert {row["counts"] for row in first["sessions"]} == {None}
        indexes = [prefix for prefix in store.listed if "/index/" in prefix]
        assert len(indexes) == 50
        assert first["next"] == "/home.json?page=2"
        seen = [row["session"] for row in client.get("/home.json?page=200").json()["sessions"]]
        assert seen == names[49::-1]
        last = client.get("/home?page=200").text
        assert 'rel="prev"' in last
        assert 'rel="next"' not in last
        assert "This page is empty" in client.get("/home?page=201").text
        assert client.get("/home.json?page=99999999999999999999999").json()["sessions"] == []
        assert client.get("/home.json", params={"q": names[1234]}).json()["total"] == 1


KUBERAY_SESSION = SessionRef("ml", "kuberays", "session_2026-11-15_20-00-00_000000_1")


def add_manifest(root: Path, generation: int, counts: SessionCounts, ref: SessionRef = KUBERAY_SESSION) -> None:
    """Add a manifest of a session without an end record, as KubeRay's collectors leave it."""
    closing = Closing(0, clean=True)
    manifest = Manifest(SCHEMA_VERSION, generation, "b", {}, "", closing, counts, None, None, None, 0, 0)
    path = root / LAYOUT.manifest_key(ref, generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(manifest))


def test_counts_follow_an_index_extended_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are cached for a while, because a page shows fifty sessions."""
    store_sessions(tmp_path / "store", KUBERAY_SESSION)
    add_manifest(tmp_path / "store", 1, SessionCounts(tasks=1))
    store = CountingStore(tmp_path / "store")

    def shown(client: TestClient) -> int:
        (row,) = client.get("/home.json").json()["sessions"]
        return int(row["counts"]["tasks"])

    with serve(tmp_path, store) as client:
        assert shown(client) == 1
        add_manifest(tmp_path / "store", 2, SessionCounts(tasks=2))
        listings = len([prefix for prefix in store.listed if "/index/" in prefix])
        assert shown(client) == 1
        assert len([prefix for prefix in store.listed if "/index/" in prefix]) == listings
    monkeypatch.setattr(session_listing, "_MANIFEST_TTL_S", 0.0)
    with serve(tmp_path, store) as client:
        assert shown(client) == 2
        add_manifest(tmp_path / "store", 3, SessionCounts(tasks=3))
        assert shown(client) == 3


def test_failed_sessions_have_a_failed_job_or_were_lost(tmp_path: Path) -> None:
    """A program may handle failures of its tasks. Only their number makes a session come first in `sort=failed`."""
    counts = {
        "failed-job": SessionCounts(tasks=9, jobs={"SUCCEEDED": 1, "FAILED": 1}),
        "handled": SessionCounts(tasks=9, failed_tasks=5, jobs={"SUCCEEDED": 1, "STOPPED": 1}),
        "jobs-unknown": SessionCounts(tasks=9, failed_tasks=2),
        "succeeded": SessionCounts(tasks=9, jobs={"SUCCEEDED": 1}),
    }
    for cluster, each in counts.items():
        ref = SessionRef("ml", cluster, KUBERAY_SESSION.session)
        store_sessions(tmp_path / "store", ref)
        add_manifest(tmp_path / "store", 1, each, ref)
    lost = SessionRef("ml", "lost", KUBERAY_SESSION.session)
    store_sessions(tmp_path / "store", lost)
    start = tmp_path / "store" / LAYOUT.start_key(lost)
    start.parent.mkdir(parents=True)
    start.write_bytes(msgspec.json.encode(StartRecord(lost.namespace, lost.cluster, lost.session, 1)))
    os.utime(start, (1, 1))
    with serve(tmp_path, LocalStore(tmp_path / "store")) as client:

        def clusters(query: str) -> list[str]:
            return [row["cluster"] for row in client.get(f"/home.json?{query}").json()["sessions"]]

        assert sorted(clusters("failed=1")) == ["failed-job", "jobs-unknown", "lost"]
        assert clusters("sort=failed")[:3] == ["handled", "jobs-unknown", "failed-job"]


def test_search_finds_the_reason_why_a_session_failed(tmp_path: Path) -> None:
    """The list shows it."""
    store = LocalStore(tmp_path / "store")
    for cluster, status in (("broken", "FAILED"), ("fine", "SUCCEEDED")):
        ref = SessionRef("ml", cluster, KUBERAY_SESSION.session)
        store_sessions(tmp_path / "store", ref)
        add_manifest(tmp_path / "store", 1, SessionCounts(tasks=9, jobs={status: 1}), ref)
        diagnosis = ProductManifest(
            product="diagnosis", version=DIAGNOSIS.version, generation=1, build="b", files={}, tables_generation=1,
            tables_covered="", closing=Closing(0, clean=True), preview={"headline": "KeyError: 'lr'"}, seconds=0,
        )  # fmt: skip
        asyncio.run(publish_product(store, LAYOUT, ref, diagnosis))
    with serve(tmp_path, store) as client:
        for query in ("KeyError", "keyerror broken", "keyerror"):
            assert clusters(client, q=query) == ["broken"]
        assert clusters(client, q="keyerror fine") == []
        page = client.get("/home?q=keyerror").text
    assert "Failed tasks" in page
    assert "Failures" not in page


def test_sessions_whose_failures_are_unknown_are_counted(tmp_path: Path) -> None:
    indexed, unknown = (SessionRef("ml", name, KUBERAY_SESSION.session) for name in ("indexed", "unknown"))
    store_sessions(tmp_path / "store", indexed, unknown)
    add_manifest(tmp_path / "store", 1, SessionCounts(tasks=9, jobs={"SUCCEEDED": 1}), indexed)
    with serve(tmp_path, LocalStore(tmp_path / "store")) as client:
        for query, count in (("", 0), ("failed=1", 1), ("failed=1&cluster=indexed", 0), ("q=train", 1), ("q=unkn", 0)):
            assert client.get(f"/home.json?{query}").json()["unindexed"] == count, query
        page = client.get("/home?failed=1").text
    assert "the jobs of 1 other session are unknown until indexed" in page


def test_utilization_comes_from_the_metrics_product(tmp_path: Path) -> None:
    store_sessions(tmp_path / "store", KUBERAY_SESSION)
    add_manifest(tmp_path / "store", 1, SessionCounts(tasks=1))
    product = ProductManifest(
        product="metrics", version=PRODUCT.version, generation=1, build="b", files={}, tables_generation=1,
        tables_covered="", closing=Closing(0, clean=True), preview={"cpu": [0, 50, None], "gpu": [3, 4]}, seconds=0,
    )  # fmt: skip
    store = LocalStore(tmp_path / "store")
    asyncio.run(publish_product(store, LAYOUT, KUBERAY_SESSION, product))
    with serve(tmp_path, store) as client:
        (row,) = client.get("/home.json").json()["sessions"]
        assert [(line["name"], line["values"]) for line in row["utilization"]] == [
            ("CPU", [0.0, 50.0, None]),
            ("GPU", [3.0, 4.0]),
        ]
        page = client.get("/home").text
    assert 'aria-label="CPU utilization: mean 25, most 50 %"' in page
    assert 'points="0,100.0 1,50.0"' in page


@pytest.mark.parametrize(
    "preview", [{}, {"cpu": "<b>"}, {"cpu": [1]}, {"cpu": {"a": 1}}, {"other": [1, 2]}, {"cpu": None, "gpu": 3}]
)
def test_facts_of_another_shape_have_no_lines(preview: dict[str, Any]) -> None:
    assert utilization_lines(preview) == []


def test_lines_are_bounded() -> None:
    (line,) = utilization_lines({"cpu": [10**400, -5, "x", *range(1000)]})
    assert line.values[:3] == [100.0, 0.0, None]
    assert len(line.values) == 100


def test_unreadable_index_is_not_shown_as_missing(tmp_path: Path) -> None:
    store_sessions(tmp_path / "store", KUBERAY_SESSION)
    add_manifest(tmp_path / "store", 1, SessionCounts(tasks=1))
    unavailable = LAYOUT.index_prefix(KUBERAY_SESSION)
    with serve(tmp_path, UnavailableStore(tmp_path / "store", unavailable)) as client:
        (row,) = client.get("/home.json").json()["sessions"]
        assert (row["counts"], row["unreadable"]) == (None, True)
        page = client.get("/home").text
        assert "temporarily unavailable" in page
        assert "not indexed yet" not in page
    with serve(tmp_path, LocalStore(tmp_path / "store")) as client:
        assert client.get("/home.json").json()["sessions"][0]["unreadable"] is False


@pytest.mark.parametrize(
    "path", ["/home", "/home.json", "/", "/clusters", "/readyz", "/enter_cluster/ml/x", "/s/ml/x/latest/",
             "/s/ml/x/latest/gaps", "/s/ml/x/latest/api/v0/tasks"],
)  # fmt: skip
def test_unavailable_store_gets_503_with_retry_after(tmp_path: Path, path: str) -> None:
    (tmp_path / "store").mkdir()
    with serve(tmp_path, UnavailableStore(tmp_path / "store", "")) as client:
        response = client.get(path, headers={"Accept": "text/html"})
        assert (response.status_code, response.headers.get("retry-after")) == (503, "2"), response.text
