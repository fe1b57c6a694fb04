"""Summaries: counts as in the live dashboard, and the lineage that Ray computes."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.ray_api import summaries
from support.recorded_sample import live, serving

Row = dict[str, Any]
JOB = "filter_keys=job_id&filter_predicates=%3D&filter_values=01000000"
UNDEFINED = {
    "17f2b76b455887adffffffffffffffffffffffff01000000",
    "37ae34bb096fa216ffffffffffffffffffffffff01000000",
}
"""Tasks for which only the worker exported events: Ray drops them, the history server shows them."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("summaries")) as client:
        yield client


def result(client: TestClient, address: str) -> Row:
    response = client.get(f"api/v0/{address}")
    assert response.status_code == 200, response.text
    found: Row = response.json()["data"]["result"]
    return found


def cluster(response: Row) -> Row:
    found: Row = response["result"]["node_id_to_summary"]["cluster"]
    return found


def test_task_summary_matches_the_live_dashboard(client: TestClient) -> None:
    ours, theirs = result(client, "tasks/summarize"), live("v0_tasks_summarize")["data"]["result"]
    expected = cluster(theirs)
    expected["summary"]["ok"]["state_counts"]["FINISHED"] += len(UNDEFINED)
    expected["total_tasks"] += len(UNDEFINED)
    assert cluster(ours) == expected
    assert ours["total"] == ours["num_after_truncation"] == ours["num_filtered"] == 23
    assert ours["warnings"] is None


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("max_names", range(1, 12))
def test_summary_lists_the_most_frequent_names_and_counts_all(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, max_names: int, by_function: bool
) -> None:
    """Each listed name has all its states."""
    monkeypatch.setattr(summaries, "_GROUPED_BY_NAME_SINCE", (9999, 0) if by_function else (0, 0))
    whole = result(client, f"tasks/summarize?timeout={50 + by_function}")
    monkeypatch.setattr(summaries, "_MAX_NAMES", max_names)
    monkeypatch.setattr(summaries, "_MAX_GROUPS", 1)
    cut = result(client, f"tasks/summarize?timeout={100 + 2 * max_names + by_function}")
    names, all_names = cluster(cut).pop("summary"), cluster(whole).pop("summary")
    assert names.items() <= all_names.items()
    counts = sorted(sum(name["state_counts"].values()) for name in all_names.values())
    assert sorted(sum(name["state_counts"].values()) for name in names.values()) == counts[-max_names:]
    assert cluster(cut) == cluster(whole)
    assert (cut["total"], cut["num_filtered"]) == (whole["total"], whole["num_filtered"])
    assert (cut["warnings"] is None) == (max_names >= len(all_names))


def test_summary_can_be_limited_to_one_job(client: TestClient) -> None:
    found = result(client, f"tasks/summarize?{JOB}")
    assert "f" not in cluster(found)["summary"]
    assert found["num_filtered"] == found["total"] == 22


def test_actors_are_counted_by_class(client: TestClient) -> None:
    found = result(client, "actors/summarize")
    assert cluster(found) == {
        "summary": {
            "A": {"class_name": "A", "state_counts": {"DEAD": 1}},
            "Async": {"class_name": "Async", "state_counts": {"DEAD": 1}},
            "B": {"class_name": "B", "state_counts": {"DEAD": 1}},
            "JobSupervisor": {"class_name": "JobSupervisor", "state_counts": {"DEAD": 4}},
        },
        "total_actors": 7,
        "summary_by": "class",
    }


def test_summary_of_objects_is_empty(client: TestClient) -> None:
    found = result(client, "objects/summarize")
    assert cluster(found) == cluster(live("v0_objects_summarize")["data"]["result"])
    assert "not recorded" in found["warnings"][0]


def test_lineage_matches_the_live_dashboard(client: TestClient) -> None:
    ours = cluster(result(client, f"tasks/summarize?summary_by=lineage&{JOB}"))
    theirs = cluster(live("v0_tasks_summarize_lineage")["data"]["result"])
    shown = {key: node for key, node in nodes(ours["summary"]).items() if key not in UNDEFINED}
    expected = nodes(theirs["summary"])
    expected["ok"]["state_counts"] = {"FINISHED": 6}
    # With a job filter, Ray's order of attempts is arbitrary; the recorded response has the second attempt.
    expected["359ec6ce30d3ca2d52297792c799d4f52f1fb4a701000000"]["timestamp"] = 1794770335258
    assert shown == expected
    assert (ours["total_actor_tasks"], ours["total_actor_scheduled"]) == (7, 3)


def nodes(tree: list[Row]) -> dict[str, Row]:
    found = {}
    for node in tree:
        found[node["key"]] = {name: value for name, value in node.items() if name != "children"}
        found |= nodes(node["children"])
    return found


def test_lineage_matches_the_one_that_ray_computes(client: TestClient) -> None:
    common = pytest.importorskip("ray.util.state.common")
    tasks = client.get("api/v0/tasks?detail=1").json()["data"]["result"]["result"]
    actors = client.get("api/v0/actors?detail=1").json()["data"]["result"]["result"]
    theirs = common.TaskSummaries.to_summary_by_lineage(tasks=tasks, actors=actors)
    ours = cluster(result(client, "tasks/summarize?summary_by=lineage"))
    expected = common.asdict(theirs)
    assert ours == expected


def test_unknown_summary_kind_is_rejected(client: TestClient) -> None:
    response = client.get("api/v0/tasks/summarize?summary_by=colour")
    assert response.status_code == 400
    assert response.json()["msg"] == 'summary_by must be one of "func_name", "task_name", or "lineage".'
