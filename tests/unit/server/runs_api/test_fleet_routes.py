"""Figures of the fleet: by day, namespace and failure, cut to what a visitor may see."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rayhistory.runs.session_summary import StoredSummary
from support.generated_runs import DAY_MS, generated, serving_runs
from support.two_namespaces import ALLOWED_TOKEN, bearer, write_access_file

TODAY = int(time.time() * 1000) // DAY_MS * DAY_MS


def sessions() -> list[StoredSummary]:
    return [
        generated(0, started_ms=TODAY),
        generated(1, started_ms=TODAY, status="FAILED", fingerprint="aa"),
        generated(2, started_ms=TODAY - 3 * DAY_MS, status="FAILED", fingerprint="aa"),
        generated(3, started_ms=TODAY - 40 * DAY_MS),
        generated(4, started_ms=TODAY, namespace="team-x", name="secret"),
    ]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving_runs(tmp_path_factory.mktemp("fleet"), sessions()) as client:
        yield client


def test_days_namespaces_and_failures_are_counted(client: TestClient) -> None:
    body = client.get("/api/history/fleet").json()
    assert len(body["days"]) == 30
    assert (body["days"][-1]["succeeded"], body["days"][-1]["failed"]) == (2, 1)
    assert body["days"][-4]["failed"] == 1
    assert {row["namespace"]: row["runs"] for row in body["namespaces"]} == {"default": 3, "team-x": 1}
    assert (body["total"]["runs"], body["total"]["idle_gpu_hours"]) == (4, 6.0)
    (failure,) = body["failures"]
    assert (failure["fingerprint"], failure["runs"]) == ("aa", 2)


def test_window_and_namespace_can_be_chosen(client: TestClient) -> None:
    assert client.get("/fleet.json?since=90d").json()["total"]["runs"] == 5
    assert client.get("/fleet.json?since=1d&namespace=default").json()["total"]["runs"] == 2
    assert client.get("/fleet.json?since=x").status_code == 400
    assert client.get("/fleet?since=x").status_code == 400


def test_page_and_csv_show_the_same(client: TestClient) -> None:
    page = client.get("/fleet").text
    assert "ValueError in load" in page
    assert "team-x" in page
    assert len(client.get("/fleet.csv").text.splitlines()) == 3


def test_visitors_see_figures_of_their_namespaces_only(tmp_path: Path) -> None:
    access = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serving_runs(tmp_path, sessions(), **access) as client:
        for path in ("/fleet", "/fleet.csv", "/fleet.json", "/fleet?namespace=team-x"):
            text = client.get(path, headers=bearer(ALLOWED_TOKEN)).text
            assert "secret" not in text
        assert client.get("/fleet.json", headers=bearer(ALLOWED_TOKEN)).json()["total"]["runs"] == 3
        hidden = client.get("/fleet.json?namespace=team-x", headers=bearer(ALLOWED_TOKEN)).json()
        assert hidden["total"]["runs"] == 0
        assert "team-x" not in client.get("/metrics").text
        assert 'rayhistory_fleet_runs{status="failed"} 1.0' in client.get("/metrics").text
        assert 'rayhistory_fleet_failures{code="user_exception"} 1.0' in client.get("/metrics").text


def test_prometheus_metrics_have_the_same_figures(client: TestClient) -> None:
    text = client.get("/metrics").text
    assert 'rayhistory_fleet_runs{namespace="default",status="failed"} 1.0' in text
    assert 'rayhistory_fleet_gpu_hours{namespace="team-x"} 2.0' in text
    assert "rayhistory_fleet_up 1.0" in text
    assert re.search(r'rayhistory_fleet_failures{code="user_exception",fingerprint="\w+"} 1.0', text)
