"""KubeRay's API for a live cluster, as its end-to-end tests use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from support.head_double import HeadDouble
from support.live_server import REF, serve_with_head
from support.two_namespaces import serve_two_namespaces, store_live_session

ENTER = "/enter_cluster/default/raycluster/alive/live"
FILE = "/api/v0/logs/file"


async def health(request: Request) -> Response:
    return JSONResponse({"from": "head"})


async def missing_file(request: Request) -> Response:
    return PlainTextResponse("as Ray says", 500)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    paths = ("/api/grafana_health", "/api/prometheus_health")
    head = HeadDouble(REF.session, overrides=[*(Route(path, health) for path in paths), Route(FILE, missing_file)])
    with serve_with_head(tmp_path, head) as client:
        assert client.get(ENTER).status_code == 200
        yield client


def test_live_cluster_is_entered_as_live(tmp_path: Path) -> None:
    """Also where it is read from the store, a few seconds behind."""
    store_live_session(tmp_path, "", REF)
    with serve_two_namespaces(tmp_path) as client:
        assert {row["sessionName"] for row in client.get("/clusters").json() if row["name"] == "alive"} >= {"live"}
        entered = client.get(ENTER)
        assert (entered.status_code, entered.json()["session"]) == (200, "live")
        assert client.cookies["session_name"] == "live"
        tasks = client.get("/api/v0/tasks")
        assert (tasks.status_code, tasks.json()["data"]["result"]["total"]) == (200, 0)


def test_health_of_a_live_cluster_is_the_heads(client: TestClient) -> None:
    for path in ("/api/grafana_health", "/api/prometheus_health"):
        assert client.get(path).json() == {"from": "head"}
        assert client.get(f"/s/default/alive/live{path}").json() != {"from": "head"}


@pytest.mark.parametrize(
    "query",
    ["filename=raylet.out", "node_id=x", "", "node_id=x&filename=a&lines=x", "node_id=x&filename=a&timeout=x",
     "node_id=x&filename=a&attempt_number=x", "node_id=x&filename=a&suffix=log", "node_id=x&filename=../a",
     "node_id=x&filename=/etc/passwd", "node_id=../x&filename=a"],
)  # fmt: skip
def test_invalid_request_for_a_log_is_400(client: TestClient, query: str) -> None:
    assert client.get(f"{FILE}?{query}").status_code == 400


def test_missing_log_has_the_status_of_ray(client: TestClient) -> None:
    response = client.get(f"{FILE}?node_id=x&filename=none.log")
    assert (response.status_code, response.text) == (500, "as Ray says")
