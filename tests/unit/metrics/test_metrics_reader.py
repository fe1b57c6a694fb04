"""Stored metrics are served as names and points, selected by label, node and time."""

import asyncio
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.metrics.metrics_reader import MetricsReader
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.metrics.samples import SampledSeries, Samples, encode
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from support import stored_metrics
from support.counting_store import CountingStore
from support.stored_metrics import samples, store_object, store_session

SESSION = "session_1970-01-01_00-00-00_055078_15551"  # times of samples are a few seconds after it
REF = SessionRef("default", "test", SESSION)
NODE, OTHER_NODE = "a" * 56, "b" * 56
URL = f"/s/default/test/{SESSION}"


def make_series(name: str, labels: dict[str, str], *values: float) -> SampledSeries:
    return SampledSeries(name, labels, array("d", values).tobytes())


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A server whose store has two objects of one node, and one good and one damaged object of another."""
    store = tmp_path / "store"
    metadata = store / Layout().metadata_key(REF)
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(b"")

    def put(node: str, first_ms: int, data: bytes) -> None:
        path = store / Layout().metrics_key(REF, node, first_ms)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    series = [
        make_series("cpu", {"ip": "1"}, 10.0, 20.0),
        make_series("tasks", {"State": "RUNNING"}, math.nan, 1.0),
        make_series("tasks", {"State": "FAILED"}, 0.0, 0.0),
        make_series("requests_total", {}, 1.0, 2.0),
    ]
    types = {"cpu": "gauge", "tasks": "gauge", "requests": "counter"}
    put(NODE, 1000, encode(Samples([1000, 2000], series, types, dropped=7)))
    put(NODE, 3000, encode(Samples([3000, 3500], [make_series("cpu", {"ip": "1"}, 30.0, math.inf)], {"cpu": "gauge"})))
    put(OTHER_NODE, 1500, encode(Samples([1500], [make_series("cpu", {"ip": "2"}, 5.0)], {"cpu": "gauge"})))
    put(OTHER_NODE, 9000, b"damaged")
    flags = {"setting_local_storage_dir": str(store), "setting_cache_dir": str(tmp_path / "cache"),
             "setting_index_ahead": "false"}  # fmt: skip
    with TestClient(create_app(resolve("historyserver", flags, {})[0])) as client:
        yield client


def test_names_are_listed_with_counts_of_missing_data(client: TestClient) -> None:
    assert client.get(f"{URL}/api/history/metrics").json() == {
        "metrics": [
            {"name": "cpu", "type": "gauge", "nodes": 2},
            {"name": "requests_total", "type": "counter", "nodes": 1},
            {"name": "tasks", "type": "gauge", "nodes": 1},
        ],
        "series_dropped": 7,
        "files_damaged": 1,
    }


def test_points_are_joined_over_objects_and_nodes(client: TestClient) -> None:
    """The second response comes from the cache."""
    for _ in range(2):
        response = client.get(f"{URL}/api/history/metrics?name=cpu").json()
        assert response["type"] == "gauge"
        assert response["series"] == [
            {"node": NODE, "labels": {"ip": "1"}, "points": [[1000, 10.0], [2000, 20.0], [3000, 30.0], [3500, None]]},
            {"node": OTHER_NODE, "labels": {"ip": "2"}, "points": [[1500, 5.0]]},
        ]


@pytest.mark.parametrize(
    ("query", "points"),
    [
        ("name=tasks&State=RUNNING", [[[2000, 1.0]]]),
        ("name=tasks&State=NONE", []),
        ("name=nothing", []),
        (f"name=cpu&node={OTHER_NODE}", [[[1500, 5.0]]]),
        ("name=cpu&from=1500&to=2000", [[[2000, 20.0]], [[1500, 5.0]]]),
        ("name=cpu&ip=1&step=2000", [[[1000, 10.0], [3500, None]]]),
    ],
)
def test_points_are_selected_by_label_node_and_time(client: TestClient, query: str, points: list[Any]) -> None:
    series = client.get(f"{URL}/api/history/metrics?{query}").json()["series"]
    assert [each["points"] for each in series] == points


def test_points_after_the_as_of_time_are_left_out(client: TestClient) -> None:
    series = client.get(f"{URL}@1700/api/history/metrics?name=cpu").json()["series"]
    assert [each["points"] for each in series] == [[[1000, 10.0]], [[1500, 5.0]]]


def test_invalid_time_is_400_and_unknown_session_404(client: TestClient) -> None:
    assert client.get(f"{URL}/api/history/metrics?name=cpu&from=yesterday").status_code == 400
    other = URL.replace("15551", "15552")
    assert client.get(f"{other}/api/history/metrics").status_code == 404


def test_requests_at_the_same_time_read_an_object_once(tmp_path: Path) -> None:
    store_session(tmp_path)
    store_object(tmp_path, NODE, samples({("cpu", ()): [1.0]}))

    async def run() -> None:
        reader = MetricsReader(LocalStore(tmp_path), Layout())
        found = await asyncio.gather(*(reader.read(stored_metrics.REF, MetricQuery()) for _ in range(5)))
        assert len({id(each.samples[0][1]) for each in found}) == 1

    asyncio.run(run())


def test_requests_at_the_same_time_list_the_objects_once(tmp_path: Path) -> None:
    """A page requests six panels at once."""

    store_session(tmp_path)
    store_object(tmp_path, NODE, samples({("cpu", ()): [1.0]}))

    async def run() -> None:
        store = CountingStore(tmp_path)
        reader = MetricsReader(store, Layout())
        await asyncio.gather(*(reader.tiles(stored_metrics.REF, MetricQuery(), ["cpu"]) for _ in range(6)))
        assert list(store.listings.values()) == [1]

    asyncio.run(run())
