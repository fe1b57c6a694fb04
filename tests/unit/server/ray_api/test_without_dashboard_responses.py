"""A session with events only, without any dashboard response."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import Layout
from support.recorded_sample import NODE, REF, live, live_rows, settings_for, store_sample


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("events"))
    store_sample(settings)
    shutil.rmtree(Path(settings.local_storage_dir) / Layout().dashboard_responses_prefix(REF))
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        assert client.get("api/history/rows/snapshots").json()["rows"] == []
        yield client


def data(client: TestClient, address: str) -> Any:
    response = client.get(address)
    assert response.status_code == 200, response.text
    assert response.json()["result"] is True
    return response.json()["data"]


def test_nodes_are_listed_without_statistics(client: TestClient) -> None:
    found = data(client, "nodes?view=summary")
    (node,), (reported,) = found["summary"], live("nodes_summary")["data"]["summary"]
    for field in ("nodeId", "nodeManagerAddress", "resourcesTotal", "isHeadNode", "state", "startTimeMs"):
        assert node["raylet"][field] == reported["raylet"][field], field
    assert (node["ip"], node["hostname"]) == (reported["ip"], reported["hostname"])
    assert (node["cpu"], node["gpus"], node["disk"]) == (0.0, [], {})
    cpus = reported["raylet"]["resourcesTotal"]["CPU"]
    assert f"0.0/{float(cpus)} CPU" in found["nodeLogicalResources"][NODE].splitlines()


def test_node_has_actors_and_no_workers(client: TestClient) -> None:
    detail = data(client, f"nodes/{NODE}")["detail"]
    assert detail["raylet"]["nodeId"] == NODE
    assert set(detail["actors"]) >= {row["actor_id"] for row in live_rows("v0_actors_detail")}
    assert detail["workers"] == []


def test_actors_are_built_from_events(client: TestClient) -> None:
    found = data(client, "logical/actors")["actors"]
    reported = {row["actor_id"]: row for row in live_rows("v0_actors_detail")}
    for actor, row in reported.items():
        ours, state = found[actor], "DEAD"  # the last of them died with the session
        assert (ours["className"], ours["name"], ours["jobId"], ours["pid"], ours["state"]) == (
            row["class_name"], row["name"], row["job_id"], row["pid"], state,
        )  # fmt: skip
        assert ours["address"]["nodeId"] == NODE
        assert ours["numRestarts"] == row["num_restarts"]
        assert ours["startTime"] > 0
        assert (ours["mem"], ours["processStats"]) == ([], None)
    one = next(iter(reported))
    assert data(client, f"logical/actors/{one}")["detail"]["actorId"] == one


def test_cluster_status_is_empty(client: TestClient) -> None:
    assert data(client, "api/cluster_status") == {
        "autoscalingStatus": None, "autoscalingError": None, "clusterStatus": None,
    }  # fmt: skip
    assert data(client, "api/cluster_status?format=1") == {"clusterStatus": None}
