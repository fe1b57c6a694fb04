"""The list of sessions: every view has an address, only what is on the page is looked at, and mistakes are told."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.errors import StoreUnavailable
from rayhistory.index.manifest import SCHEMA, Closing, Counts, Manifest
from rayhistory.layout import Layout, SessionRef
from rayhistory.server import home as home_module
from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from rayhistory.storage.seam import Listing, ObjectInfo

LAYOUT = Layout()
DAY = 86_400
MANY = 10_000


class CountingStore(LocalStore):
    """A directory that notes which folders were listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    async def list_folder(self, prefix: str) -> Listing:
        self.listed.append(prefix)
        return await super().list_folder(prefix)


class ForgetfulStore(LocalStore):
    """A directory that does not answer below these prefixes."""

    def __init__(self, root: Path, *away: str) -> None:
        super().__init__(root)
        self.away = away

    async def list_folder(self, prefix: str) -> Listing:
        if prefix.startswith(self.away):
            raise StoreUnavailable("the store is away")
        return await super().list_folder(prefix)

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix.startswith(self.away):
            raise StoreUnavailable("the store is away")
        async for info in super().list_all(prefix, start_after):
            yield info


def session_of(seconds: float) -> str:
    return time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_1", time.gmtime(seconds))


def keep(root: Path, *refs: SessionRef) -> None:
    for ref in refs:
        path = root / LAYOUT.metadata_key(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def opened(directory: Path, store: LocalStore) -> TestClient:
    flags = {"setting_cache_dir": str(directory / "cache"), "setting_index_ahead": "false"}
    return TestClient(create_app(resolve("historyserver", flags, {})[0], store))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory, now = tmp_path_factory.mktemp("home"), time.time()
    keep(
        directory / "store",
        SessionRef("ml", "beta", session_of(now - 60), "rayjob", "nightly"),
        SessionRef("ml", "alpha", session_of(now - 2 * 3600), "rayjob", "weekly"),
        SessionRef("ml", "gamma", session_of(now - 3 * DAY), "rayservice", "shop"),
        SessionRef("dev", "delta", session_of(now - 40 * DAY)),
        SessionRef("dev", "epsilon", "session_2020-01-31_23-59-59_000000_1"),
    )
    with opened(directory, LocalStore(directory / "store")) as client:
        yield client


def clusters(client: TestClient, **params: Any) -> list[str]:
    answer = client.get("/home.json", params=params)
    assert answer.status_code == 200, answer.text
    return [row["cluster"] for row in answer.json()["sessions"]]


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
        ({"from": "2020-01-31", "to": "2020-02-01T00:00:00+01:00"}, []),
        ({"from": "1580511599000", "to": "2020-02-01"}, ["epsilon"]),
        ({"sort": "cluster"}, ["alpha", "beta", "delta", "epsilon", "gamma"]),
        ({"sort": "-cluster", "namespace": "dev"}, ["epsilon", "delta"]),
        ({"sort": "started", "owner": "rayjob"}, ["alpha", "beta"]),
        ({"sort": "namespace"}, ["delta", "epsilon", "beta", "alpha", "gamma"]),
        ({"since": "7d", "owner": "rayjob", "q": "alpha"}, ["alpha"]),
    ],
)
def test_a_view_is_its_address(client: TestClient, params: dict[str, str], expected: list[str]) -> None:
    assert clusters(client, **params) == expected
    page = client.get("/home", params=params).text
    assert [name for name in ("beta", "alpha", "gamma", "delta", "epsilon") if f">{name}</a>" in page] == [
        name for name in ("beta", "alpha", "gamma", "delta", "epsilon") if name in expected
    ]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("state=asleep", "state is one of running, ended, vanished"),
        ("owner=me", "owner is rayjob, rayservice"),
        ("since=yesterday", "since is a number of hours or days"),
        ("since=7", "since is a number of hours or days"),
        ("from=tomorrow", "from is a day or a time"),
        ("to=2026-02-30", "to is a day or a time"),
        ("to=9999-12-31", "to is a day or a time"),
        ("sort=size", "sort is one of"),
        ("page=0", "page is a number from 1 on"),
        ("page=-1", "page is a number from 1 on"),
        ("page=two", "page is a number from 1 on"),
    ],
)
def test_a_value_that_means_nothing_is_told(client: TestClient, query: str, told: str) -> None:
    """Nobody takes the list of everything for the list that was asked for."""
    answer = client.get(f"/home.json?{query}")
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    page = client.get(f"/home?{query}")
    assert page.status_code == 400
    assert told.split(maxsplit=1)[0] in page.text


def test_an_empty_choice_is_none(client: TestClient) -> None:
    """A form sends all its fields."""
    assert (
        len(clusters(client, q="", namespace="", owner="", since="", **{"from": "", "to": ""}, sort="", page="")) == 5
    )


def test_the_json_has_everything_that_the_page_shows(client: TestClient) -> None:
    body = client.get("/home.json", params={"q": "beta"}).json()
    (row,) = body["sessions"]
    assert (row["owner_kind"], row["owner_name"], row["state"]) == ("rayjob", "nightly", "ended")
    assert row["counts"] is None
    assert row["dashboard"] in body["dashboards"]
    assert (body["namespaces"], body["total"], body["next"]) == (["dev", "ml"], 1, None)


def test_ten_thousand_sessions_are_paged_and_only_those_of_the_page_are_looked_at(tmp_path: Path) -> None:
    names = [session_of(1_700_000_000 + 1_000 * number) for number in range(MANY)]
    folder = (tmp_path / "store" / LAYOUT.metadata_key(SessionRef("ml", "many", names[0]))).parent
    folder.mkdir(parents=True)
    for name in names:
        (tmp_path / "store" / LAYOUT.metadata_key(SessionRef("ml", "many", name))).touch()
    store = CountingStore(tmp_path / "store")
    with opened(tmp_path, store) as client:
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
        assert "Nothing on this page" in client.get("/home?page=201").text
        assert client.get("/home.json?page=99999999999999999999999").json()["sessions"] == []
        assert client.get("/home.json", params={"q": names[1234]}).json()["total"] == 1


KUBERAYS = SessionRef("ml", "kuberays", "session_2026-11-15_20-00-00_000000_1")


def add_manifest(root: Path, generation: int, tasks: int) -> None:
    """Of a session of which nothing tells when it ended, as with those of KubeRay's collectors."""
    closing, counts = Closing(0, clean=True), Counts(tasks=tasks)
    manifest = Manifest(SCHEMA, generation, "b", {}, "", closing, counts, None, None, None, 0, 0)
    path = root / LAYOUT.manifest_key(KUBERAYS, generation)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(manifest))


def test_counts_follow_an_index_that_was_extended_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at again after a while, and not before: a visit does not cost what fifty sessions do."""
    keep(tmp_path / "store", KUBERAYS)
    add_manifest(tmp_path / "store", 1, tasks=1)
    store = CountingStore(tmp_path / "store")

    def shown() -> int:
        (row,) = client.get("/home.json").json()["sessions"]
        return int(row["counts"]["tasks"])

    with opened(tmp_path, store) as client:
        assert shown() == 1
        add_manifest(tmp_path / "store", 2, tasks=2)
        looked = len([prefix for prefix in store.listed if "/index/" in prefix])
        assert shown() == 1
        assert len([prefix for prefix in store.listed if "/index/" in prefix]) == looked
    monkeypatch.setattr(home_module, "_FRESH", 0.0)
    with opened(tmp_path, store) as client:
        assert shown() == 2
        add_manifest(tmp_path / "store", 3, tasks=3)
        assert shown() == 3


def test_an_index_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    keep(tmp_path / "store", KUBERAYS)
    add_manifest(tmp_path / "store", 1, tasks=1)
    away = LAYOUT.index_prefix(KUBERAYS)
    with opened(tmp_path, ForgetfulStore(tmp_path / "store", away)) as client:
        (row,) = client.get("/home.json").json()["sessions"]
        assert (row["counts"], row["unreadable"]) == (None, True)
        page = client.get("/home").text
        assert "cannot be read now" in page
        assert "not indexed yet" not in page
    with opened(tmp_path, LocalStore(tmp_path / "store")) as client:
        assert client.get("/home.json").json()["sessions"][0]["unreadable"] is False


@pytest.mark.parametrize(
    "path", ["/home", "/home.json", "/", "/clusters", "/readyz", "/enter_cluster/ml/x", "/s/ml/x/latest/",
             "/s/ml/x/latest/gaps", "/s/ml/x/latest/api/v0/tasks"],
)  # fmt: skip
def test_while_the_store_is_away_everybody_is_told_when_to_come_again(tmp_path: Path, path: str) -> None:
    (tmp_path / "store").mkdir()
    with opened(tmp_path, ForgetfulStore(tmp_path / "store", "")) as client:
        answer = client.get(path, headers={"Accept": "text/html"})
        assert (answer.status_code, answer.headers.get("retry-after")) == (503, "2"), answer.text
