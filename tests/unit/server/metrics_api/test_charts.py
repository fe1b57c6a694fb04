"""Charts of a session: dashboards, variables, panels, points in time, damaged objects and hostile names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.metrics.dashboard_bundle import encode_bundle
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout
from support.stored_metrics import REF, START_MS, samples, server_settings, store_object, store_session

HOSTILE = '"><script>alert(1)</script>'
NODES = {"a" * 56: "10.0.0.1", "b" * 56: "10.0.0.2"}
CHARTS = f"{REF.url}api/history/charts"
COUNT = 40
END_MS = START_MS + 15_000 * (COUNT - 1)


def store_nodes(directory: Path) -> None:
    """Two nodes for ten minutes; the second also has an object that is damaged, and dropped series."""
    store_session(directory)
    for number, (node, address) in enumerate(NODES.items(), 1):
        columns = {
            ("ray_node_cpu_utilization", (("ip", address), ("RayNodeType", "head"))): [10.0 * number] * COUNT,
            ("ray_node_cpu_count", (("ip", address), ("RayNodeType", "head"))): [4.0] * COUNT,
            ("ray_node_network_receive_speed", (("ip", address),)): [1.0] * COUNT,
            ("ray_tasks", (("Name", HOSTILE), ("State", "RUNNING"), ("IsRetry", "0"), ("ip", address))): [1.0] * COUNT,
        }
        store_object(directory, node, samples(columns, dropped=3 * (number - 1)))
    store_object(directory, "b" * 56, b"damaged", END_MS - 60_000)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("charts")
    store_nodes(directory / "store")
    with TestClient(create_app(server_settings(directory))) as client:
        yield client


def get(client: TestClient, path: str, **params: Any) -> Any:
    response = client.get(f"{CHARTS}{path}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


def test_dashboards_are_built_in_for_sessions_without_their_own(client: TestClient) -> None:
    listed = get(client, "")
    assert listed["from_session"] is False
    assert {"uid": "rayDefaultDashboard", "title": "Default Dashboard"} in listed["dashboards"]


def test_dashboard_has_rows_panels_and_variables_with_options(client: TestClient) -> None:
    dashboard = get(client, "/rayDefaultDashboard")
    assert (dashboard["first_ms"], dashboard["last_ms"]) == (START_MS, END_MS)
    variables = {each["name"]: each for each in dashboard["variables"]}
    assert variables["Instance"]["options"] == ["10.0.0.1", "10.0.0.2"]
    assert variables["Instance"]["values"] == ["$__all"]
    assert variables["SessionName"]["options"] == [REF.session]
    panels = {panel["title"]: panel for row in dashboard["rows"] for panel in row["panels"]}
    assert (panels["Node CPU Usage %"]["kind"], panels["Node CPU Usage %"]["unit"]) == ("timeseries", "%")


def test_panel_has_the_values_that_prometheus_would_return(client: TestClient) -> None:
    data = get(client, "/rayDefaultDashboard/panels/2", **{"from": "now-5m", "var-SessionName": REF.session})
    series = {each["name"]: each for each in data["series"]}
    assert set(series) == {"CPU Usage: 10.0.0.1 (head)", "CPU Usage: 10.0.0.2 (head)", "MAX"}
    assert set(series["CPU Usage: 10.0.0.2 (head)"]["values"]) == {0.8}
    assert (series["MAX"]["dashed"], series["MAX"]["stack"]) == (True, False)
    assert END_MS <= data["times"][-1] < END_MS + data["step_ms"]
    query = client.get(
        f"{REF.url}prometheus/api/v1/query_range",
        params={"query": data["queries"][0], "start": data["from_ms"] / 1000, "end": data["to_ms"] / 1000, "step": 15},
    ).json()["data"]["result"]
    assert [each["metric"]["instance"] for each in query] == list(NODES.values())


def test_variable_selects_one_node(client: TestClient) -> None:
    data = get(client, "/rayDefaultDashboard/panels/54", **{"var-Instance": "10.0.0.1"})
    assert [each["name"] for each in data["series"]] == ["CPU Usage: 10.0.0.1 (head)"]


def test_now_is_the_chosen_point_in_time(client: TestClient) -> None:
    as_of_ms = START_MS + 120_000
    path = f"{REF.url[:-1]}@{as_of_ms}/api/history/charts/rayDefaultDashboard/panels/54"
    data = client.get(path, params={"from": "now-1m"}).json()
    assert (data["times"][0], data["times"][-1]) == (as_of_ms - 60_000, as_of_ms)


def test_damaged_object_and_dropped_series_are_reported_on_the_chart(client: TestClient) -> None:
    data = get(client, "/rayDefaultDashboard/panels/54")
    assert data["series_dropped"] == 3
    (gap,) = data["gaps"]
    assert (gap["from_ms"], gap["to_ms"]) == (END_MS - 60_000, data["to_ms"])
    assert "node bbbbbbbbbbbb could" in gap["reason"]


def test_hostile_label_is_text(client: TestClient) -> None:
    response = client.get(f"{CHARTS}/rayDefaultDashboard/panels/35")
    assert response.headers["content-type"] == "application/json"
    assert [each["name"] for each in response.json()["series"]] == [HOSTILE]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/unknown", 404, "not_found"),
        ("/rayDefaultDashboard/panels/99999", 404, "not_found"),
        ("/rayDefaultDashboard/panels/x", 404, "not_found"),
        ("/rayDefaultDashboard/panels/54?from=soon", 400, "bad_request"),
        ("/rayDefaultDashboard/panels/54?from=2000000000&to=1000000000", 400, "bad_request"),
        *(
            (f"/rayDefaultDashboard/panels/54?points={points}", 400, "bad_request")
            for points in ("abc", "-5", "9", "2001", "100000", "²")
        ),
    ],
)
def test_wrong_requests_are_refused(client: TestClient, path: str, status: int, code: str) -> None:
    response = client.get(f"{CHARTS}{path}")
    assert response.status_code == status
    assert response.json()["error"]["status"] == status


def test_query_that_touches_too_much_is_an_error_of_its_panel(tmp_path: Path) -> None:
    store_nodes(tmp_path / "store")
    panel = {
        "id": 1,
        "type": "graph",
        "targets": [{"expr": "sum_over_time(ray_tasks[1y:1ms])"}, {"expr": "foo("}, {"expr": "1"}],
    }
    put_bundle(tmp_path / "store", encode_bundle({"own.json": dump({"uid": "own", "panels": [panel]})}))
    with TestClient(create_app(server_settings(tmp_path))) as client:
        data = get(client, "/own/panels/1")
    assert "would compute more than" in data["errors"][0]
    assert "parse error" in data["errors"][1]
    assert len(data["series"]) == 1


def test_session_shows_its_own_dashboards(tmp_path: Path) -> None:
    store_nodes(tmp_path / "store")
    document = {"uid": "own", "title": HOSTILE, "panels": [{"id": 1, "type": "geomap", "title": "Where"}]}
    put_bundle(tmp_path / "store", encode_bundle({"own.json": dump(document)}))
    with TestClient(create_app(server_settings(tmp_path))) as client:
        assert get(client, "")["dashboards"] == [{"uid": "own", "title": HOSTILE}]
        assert get(client, "/own")["rows"][0]["panels"][0]["grafana_type"] == "geomap"
        assert get(client, "/own/panels/1")["series"] == []
        assert "<script>" not in client.get(f"{REF.url}grafana/d/own/").text.partition("<body")[2]


def test_damaged_dashboards_are_replaced_by_built_in_ones(tmp_path: Path) -> None:
    store_nodes(tmp_path / "store")
    put_bundle(tmp_path / "store", b"damaged")
    with TestClient(create_app(server_settings(tmp_path))) as client:
        assert len(get(client, "")["dashboards"]) == 8


def test_session_without_metrics_has_empty_charts(tmp_path: Path) -> None:
    store_session(tmp_path / "store")
    with TestClient(create_app(server_settings(tmp_path))) as client:
        assert get(client, "/rayDefaultDashboard")["last_ms"] == 0
        assert get(client, "/rayDefaultDashboard/panels/54")["series"] == []


def put_bundle(store: Path, data: bytes) -> None:
    (store / Layout().grafana_dashboards_key(REF)).write_bytes(data)


def dump(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document)
