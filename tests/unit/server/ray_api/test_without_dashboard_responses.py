"""A session of which only events were kept, as collectors did that asked the dashboard nothing: they tell enough."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.layout import Layout
from rayhistory.server.app import create_app
from recorded_sample import NODE, REF, keep_sample, live, live_rows, settings_for


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("events"))
    keep_sample(settings)
    shutil.rmtree(Path(settings.local_storage_dir) / Layout().snapshots_prefix(REF))
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        assert client.get("api/history/rows/snapshots").json()["rows"] == []
        yield client


def data(client: TestClient, address: str) -> Any:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"] is True
    return answer.json()["data"]


def test_nodes_are_there_with_nothing_measured(client: TestClient) -> None:
    found = data(client, "nodes?view=summary")
    (node,), (told,) = found["summary"], live("nodes_summary")["data"]["summary"]
    for field in ("nodeId", "nodeManagerAddress", "resourcesTotal", "isHeadNode", "state", "startTimeMs"):
        assert node["raylet"][field] == told["raylet"][field], field
    assert (node["ip"], node["hostname"]) == (told["ip"], told["hostname"])
    assert (node["cpu"], node["gpus"], node["disk"]) == (0.0, [], {})
    cpus = told["raylet"]["resourcesTotal"]["CPU"]
    assert f"0.0/{float(cpus)} CPU" in found["nodeLogicalResources"][NODE].splitlines()


def test_a_node_has_its_actors_and_no_processes(client: TestClient) -> None:
    detail = data(client, f"nodes/{NODE}")["detail"]
    assert detail["raylet"]["nodeId"] == NODE
    assert set(detail["actors"]) >= {row["actor_id"] for row in live_rows("v0_actors_detail")}
    assert detail["workers"] == []


def test_actors_are_what_events_tell(client: TestClient) -> None:
    found = data(client, "logical/actors")["actors"]
    told = {row["actor_id"]: row for row in live_rows("v0_actors_detail")}
    for actor, row in told.items():
        ours, state = found[actor], "DEAD"  # the last of them died with the session
        assert (ours["className"], ours["name"], ours["jobId"], ours["pid"], ours["state"]) == (
            row["class_name"], row["name"], row["job_id"], row["pid"], state,
        )  # fmt: skip
        assert ours["address"]["nodeId"] == NODE
        assert ours["numRestarts"] == row["num_restarts"]
        assert ours["startTime"] > 0
        assert (ours["mem"], ours["processStats"]) == ([], None)
    one = next(iter(told))
    assert data(client, f"logical/actors/{one}")["detail"]["actorId"] == one


def test_the_status_of_the_cluster_is_not_known(client: TestClient) -> None:
    assert data(client, "api/cluster_status") == {
        "autoscalingStatus": None, "autoscalingError": None, "clusterStatus": None,
    }  # fmt: skip
    assert data(client, "api/cluster_status?format=1") == {"clusterStatus": None}
