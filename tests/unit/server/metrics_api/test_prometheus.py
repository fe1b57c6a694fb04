"""Prometheus' HTTP API of a session: its JSON, its errors, forms, points in time and hostile parameters."""

import math
import threading
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.metrics import metrics_reader
from rayhistory.metrics.samples import SampledSeries, Samples, encode
from rayhistory.promql.engine import evaluate
from rayhistory.server.app import create_app
from rayhistory.server.metrics_api import prometheus, session_metrics
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import resolve
from support.stored_metrics import server_settings, store_session

REF = SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")
API = f"{REF.url}prometheus/api/v1"
START_S = 1_794_770_000
NODES = {"a" * 56: "10.0.0.1", "b" * 56: "10.0.0.2"}
COMMON = {"SessionName": REF.session, "job": "ray", "ray_io_cluster": "test"}


def put(store: Path, node: str, first_ms: int, samples: Samples) -> None:
    path = store / Layout().metrics_key(REF, node, first_ms)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(samples))


def samples_of(address: str, start_s: int, factor: float) -> Samples:
    """Ten minutes at 15 s: a counter, a gauge that ends in the middle, and one with a hostile label."""
    times = [(start_s + 15 * number) * 1000 for number in range(40)]
    columns = {
        ("ray_requests_total", ()): [factor * 15 * (number + (start_s - START_S) / 15) for number in range(40)],
        ("ray_tasks", (("State", "RUNNING"),)): [3.0 if number < 20 else math.nan for number in range(40)],
        ("ray_odd", (("name", '"><script>alert(1)</script>\n'),)): [math.inf] * 40,
    }
    series = [
        SampledSeries(name, {"ip": address, **dict(labels)}, array("d", values).tobytes())
        for (name, labels), values in columns.items()
    ]
    return Samples(times, series, {"ray_requests_total": "counter", "ray_tasks": "gauge"})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A session of two nodes; the first has two objects, the second a damaged one besides."""
    directory = tmp_path_factory.mktemp("prometheus")
    store = directory / "store"
    metadata = store / Layout().metadata_key(REF)
    metadata.parent.mkdir(parents=True)
    metadata.touch()
    first, second = NODES
    put(store, first, START_S * 1000, samples_of(NODES[first], START_S, 1))
    put(store, first, (START_S + 600) * 1000, samples_of(NODES[first], START_S + 600, 1))
    put(store, second, START_S * 1000, samples_of(NODES[second], START_S, 2))
    (store / Layout().metrics_key(REF, second, (START_S + 600) * 1000)).write_bytes(b"damaged")
    flags = {"setting_local_storage_dir": str(store), "setting_cache_dir": str(directory / "cache"),
             "setting_index_ahead": "false"}  # fmt: skip
    with TestClient(create_app(resolve("historyserver", flags, {})[0])) as client:
        yield client


def data(client: TestClient, path: str, **parameters: Any) -> Any:
    response = client.get(f"{API}/{path}", params=parameters)
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "success"
    return response.json()["data"]


def test_instant_query_has_the_labels_of_a_scrape(client: TestClient) -> None:
    result = data(client, "query", query="round(rate(ray_requests_total[1m]), 0.5)", time=START_S + 300)
    assert result == {
        "resultType": "vector",
        "result": [
            {"metric": COMMON | {"instance": ip, "ip": ip}, "value": [START_S + 300, rate]}
            for ip, rate in (("10.0.0.1", "1"), ("10.0.0.2", "2"))
        ],
    }


def test_range_query_reads_over_objects(client: TestClient) -> None:
    query = 'ray_requests_total{instance="10.0.0.1"}'
    result = data(client, "query_range", query=query, start=START_S + 570, end=START_S + 630, step="30s")
    assert result["resultType"] == "matrix"
    assert [value for _, value in result["result"][0]["values"]] == ["570", "600", "630"]


def test_instant_query_may_return_a_range_vector(client: TestClient) -> None:
    query = 'ray_requests_total{instance="10.0.0.1"}[45s]'
    result = data(client, "query", query=query, time=START_S + 620)
    assert result["resultType"] == "matrix"
    (row,) = result["result"]
    assert row["values"] == [[START_S + at, str(at)] for at in (585, 600, 615)]
    response = client.get(
        f"{API}/query_range", params={"query": query, "start": START_S, "end": START_S, "step": "15s"}
    )
    assert response.json()["error"].startswith('invalid expression type "range vector" for range query')


def test_series_that_a_scrape_no_longer_had_is_stale(client: TestClient) -> None:
    query = 'count(ray_tasks{State="RUNNING"})'
    assert data(client, "query", query=query, time=START_S + 285)["result"][0]["value"][1] == "2"
    assert data(client, "query", query=query, time=START_S + 300)["result"] == []


def test_query_without_time_is_evaluated_at_the_end_of_the_session(client: TestClient) -> None:
    result = data(client, "query", query="time()")
    assert result == {"resultType": "scalar", "result": [START_S + 1185, str(START_S + 1185)]}


def test_nothing_is_visible_after_the_chosen_point_in_time(client: TestClient) -> None:
    at = f"{REF.url.rstrip('/')}@{(START_S + 60) * 1000}/prometheus/api/v1/query"
    latest = client.get(at, params={"query": "ray_requests_total", "time": START_S + 300}).json()["data"]["result"]
    assert {row["value"][1] for row in latest} == {"60", "120"}
    assert client.get(at, params={"query": "time()"}).json()["data"]["result"][1] == str(START_S + 60)


def test_labels_values_series_and_metadata(client: TestClient) -> None:
    assert data(client, "labels") == sorted(["__name__", "State", "name", "ip", "instance", *COMMON])
    assert data(client, "label/instance/values", **{"match[]": "ray_tasks"}) == ["10.0.0.1", "10.0.0.2"]
    assert data(client, "label/__name__/values") == ["ray_odd", "ray_requests_total", "ray_tasks"]
    assert data(client, "series", **{"match[]": 'ray_tasks{instance="10.0.0.2"}'}) == [
        {"__name__": "ray_tasks", "State": "RUNNING", "ip": "10.0.0.2", "instance": "10.0.0.2", **COMMON}
    ]
    assert data(client, "metadata")["ray_tasks"] == [{"type": "gauge", "help": "", "unit": ""}]
    assert data(client, "status/buildinfo")["version"].startswith("3.")


def test_form_equals_query_string(client: TestClient) -> None:
    parameters: dict[str, Any] = {"query": "sum(ray_requests_total)", "time": START_S + 300}
    posted = client.post(f"{API}/query", data=parameters)
    assert posted.json() == client.get(f"{API}/query", params=parameters).json()
    assert client.post(f"{API}/series", data={"match[]": "ray_tasks"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("query", {"Origin": "https://elsewhere.example"}, 403),
        ("query", {"Content-Type": "application/json"}, 405),
        ("status/buildinfo", {}, 405),
        ("label/instance/values", {}, 405),
    ],
)
def test_other_posts_are_refused(client: TestClient, path: str, headers: dict[str, str], status: int) -> None:
    assert client.post(f"{API}/{path}", data={"query": "1"}, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("path", "parameters", "status", "message"),
    [
        ("query", {}, 400, "invalid parameter 'query'"),
        ("query", {"query": "rate(x)"}, 400, "parse error"),
        ("query", {"query": "1", "time": "soon"}, 400, "valid timestamp"),
        ("query", {"query": "1", "time": "1e300"}, 400, "valid timestamp"),
        ("query", {"query": "ray_odd + on(job) ray_odd", "time": START_S}, 422, "duplicate series"),
        ("query", {"query": "histogram_count(x)"}, 400, "histogram_count() is not supported"),
        ("query_range", {"query": "1", "start": 0, "end": 10**9, "step": 1}, 400, "11,000 points"),
        ("query_range", {"query": "1", "start": 0, "end": 1, "step": 0}, 400, "zero or negative"),
        ("query_range", {"query": "1", "start": 2, "end": 1, "step": 1}, 400, "before start"),
        ("query", {"query": "1", "lookback_delta": "1m"}, 400, "'lookback_delta' is not supported"),
        ("query", {"query": "1", "limit": "-1"}, 400, "invalid parameter 'limit'"),
        ("labels", {"limit": "many"}, 400, "invalid parameter 'limit'"),
        ("series", {}, 400, "no match[]"),
        ("series", {"match[]": "{}"}, 400, ""),
        ("series", {"match[]": ["x"] * 30}, 400, "at most 20"),
    ],
)
def test_errors_have_the_shape_of_prometheus(
    client: TestClient, path: str, parameters: dict[str, Any], status: int, message: str
) -> None:
    response = client.get(f"{API}/{path}", params=parameters)
    body = response.json()
    kind = "execution" if status == 422 else "bad_data"
    assert (response.status_code, body["status"], body["errorType"]) == (status, "error", kind), body
    assert message in body["error"]
    assert response.headers["X-RayHistory-Error"]


def test_values_are_json_that_prometheus_writes(client: TestClient) -> None:
    row = data(client, "query", query="ray_odd", time=START_S)["result"][0]
    assert row["value"][1] == "+Inf"
    assert row["metric"]["name"] == '"><script>alert(1)</script>\n'
    assert data(client, "query", query="0/0")["result"][1] == "NaN"
    assert data(client, "query", query='"text"')["result"][1] == "text"


@pytest.mark.parametrize(
    "query",
    ["up offset 1e308", "up offset NaN", "up[1e308]", "up[1e18]", "up[5m:1e30]", "up @ 1e308", "up @ 1e20",
     f"up[1+{'9' * 400}s]", f"up[1+{'9' * 5000}d]"],
)  # fmt: skip
def test_numbers_beyond_all_times_are_invalid(client: TestClient, query: str) -> None:
    """Some of them made the parser panic, and all were answered with 500."""
    for path, times in (("query", {"time": START_S}), ("query_range", {"start": START_S, "end": START_S, "step": 1})):
        response = client.get(f"{API}/{path}", params={"query": query, **times})
        assert (response.status_code, response.json()["errorType"]) == (400, "bad_data")


@pytest.mark.parametrize(
    ("path", "parameters", "count"),
    [
        ("labels", {}, 2),
        ("label/__name__/values", {}, 2),
        ("series", {"match[]": '{__name__!=""}'}, 2),
        ("query", {"query": "ray_requests_total", "time": START_S}, 1),
        ("query_range", {"query": "ray_requests_total", "start": START_S, "end": START_S + 60, "step": 15}, 1),
    ],
)
def test_limit_cuts_results_with_a_warning(
    client: TestClient, path: str, parameters: dict[str, Any], count: int
) -> None:
    """Grafana's list of labels and values sends a limit."""

    def results(**limit: int) -> tuple[list[Any], Any]:
        body = client.get(f"{API}/{path}", params=parameters | limit).json()
        found = body["data"]["result"] if isinstance(body["data"], dict) else body["data"]
        return found, body.get("warnings")

    everything, _ = results()
    assert len(everything) > count
    assert results(limit=0) == results(limit=1000) == (everything, None)
    assert results(limit=count) == (everything[:count], ["results truncated due to limit"])


def test_labels_of_a_large_session_are_read_without_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of all its samples would be refused."""
    put(tmp_path / "store", "a" * 56, START_S * 1000, samples_of("10.0.0.1", START_S, 1))
    store_session(tmp_path / "store")
    monkeypatch.setattr(metrics_reader, "_MAX_LOADED", 50)
    with TestClient(create_app(server_settings(tmp_path))) as client:
        assert "too many samples" in client.get(f"{API}/query", params={"query": '{job="ray"}'}).json()["error"]
        assert len(data(client, "label/__name__/values")) == 3
        assert "State" in data(client, "labels")
        assert len(data(client, "series", **{"match[]": '{job="ray"}'})) == 3
        assert data(client, "metadata")["ray_tasks"]


def test_too_many_series_need_a_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_MAX_SERIES", 3)
    everything = {"match[]": '{job="ray"}'}
    response = client.get(f"{API}/series", params=everything)
    assert (response.status_code, "more than 3 series match" in response.json()["error"]) == (422, True)
    assert len(data(client, "series", **everything, limit=10)) == 3


def test_metadata_is_limited(client: TestClient) -> None:
    assert len(data(client, "metadata", limit=1)) == 1


def test_long_duration_is_an_invalid_parameter(client: TestClient) -> None:
    response = client.get(f"{API}/query_range?query=1&start=0&end=1&step={'9' * 5000}s")
    assert (response.status_code, response.json()["errorType"]) == (400, "bad_data")


def test_result_with_too_many_points_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point takes about 200 bytes while the response is made."""
    monkeypatch.setattr(prometheus, "_MAX_POINTS", 10)
    times: dict[str, Any] = {"start": START_S, "end": START_S + 300, "step": "15"}
    response = client.get(f"{API}/query_range", params={"query": "ray_requests_total", **times})
    assert response.status_code == 422
    assert "use a larger step" in response.json()["error"]


def test_two_queries_are_evaluated_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may need a lot of memory."""
    lock, active, most = threading.Lock(), 0, 0

    def slow_evaluate(*args: Any) -> Any:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.05)
        with lock:
            active -= 1
        return evaluate(*args)

    monkeypatch.setattr(session_metrics, "evaluate", slow_evaluate)
    with ThreadPoolExecutor(8) as visitors:
        for response in visitors.map(lambda number: client.get(f"{API}/query?query={number}"), range(8)):
            assert response.status_code == 200
    assert 0 < most <= 2
