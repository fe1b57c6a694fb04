"""Sessions of older versions of Ray: their fields, and what those versions did not export as events."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.events.dashboard_responses import TASK_SPANS_URI
from support.recorded_sample import NODE, live, live_rows, serving, serving_with

Row = dict[str, Any]

ACTOR = "8a561470475d4901e09868de01000000"
PROFILED = next(row for row in live_rows("v0_tasks_detail") if len(row["profiling_data"].get("events", [])) > 2)
LATER_SPAN = {"event_name": "checkpoint", "start_time": 1e12, "end_time": 1.8e12, "extra_data": {"epoch": 3}}


def listed_spans() -> Row:
    """Return a list of tasks whose only task has all exported spans and a later one."""
    profile = PROFILED["profiling_data"]
    row = PROFILED | {"profiling_data": profile | {"events": [*profile["events"], LATER_SPAN]}}
    return {"data": {"result": {"result": [row]}}}


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("current")) as client:
        yield client


@pytest.fixture(scope="module")
def old(current: TestClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The sample as Ray 2.53 would have left it: the dashboard has a name and a span that no event has."""
    started = current.get(f"logical/actors/{ACTOR}").json()["data"]["detail"]["startTime"]
    actor = {"actorId": ACTOR, "state": "ALIVE", "startTime": started - 3, "reprName": "Cache(size=3)"}
    actor["address"] = {"nodeId": NODE, "workerId": "ab" * 28}  # of its last life, with the start of its first one
    responses = {
        "/api/version": live("version") | {"ray_version": "2.53.0"},
        "/logical/actors": {"data": {"actors": {ACTOR: actor}}},
        TASK_SPANS_URI: listed_spans(),
    }
    with serving_with(tmp_path_factory.mktemp("old"), responses) as client:
        yield client


def rows(client: TestClient, kind: str) -> list[Row]:
    response = client.get(f"api/v0/{kind}?detail=1&limit=10000")
    assert response.status_code == 200, response.text
    found: list[Row] = response.json()["data"]["result"]["result"]
    assert found
    return found


NEWER_FIELDS = {
    "tasks": {"fallback_strategy"},
    "actors": {"fallback_strategy"},
    "placement_groups": {"topology_strategy", "topology_assignments"},
    "workers": set[str](),
}


@pytest.mark.parametrize("kind", NEWER_FIELDS)
def test_rows_have_the_fields_of_the_clusters_version(old: TestClient, current: TestClient, kind: str) -> None:
    for before, after in zip(rows(old, kind), rows(current, kind), strict=True):
        assert after.keys() - before.keys() == NEWER_FIELDS[kind]
        assert before.keys() <= after.keys()


def test_actors_of_the_dashboard_have_the_fields_of_the_clusters_version(old: TestClient, current: TestClient) -> None:
    before, after = (client.get("logical/actors").json()["data"]["actors"] for client in (old, current))
    assert {name for actor in before.values() for name in ("gpus", "tpus") if name in actor} == {"gpus"}
    assert all({"gpus", "tpus"} <= actor.keys() for actor in after.values())


def test_names_of_actors_come_from_the_dashboard(old: TestClient, current: TestClient) -> None:
    """The dashboard's report of the actor is no other start of it."""
    [before], [after] = (
        [row for row in rows(client, "actors") if row["actor_id"] == ACTOR] for client in (old, current)
    )
    assert before == {name: value for name, value in after.items() if name in before} | {"repr_name": "Cache(size=3)"}
    assert after["repr_name"] == ""


def test_only_events_tell_on_which_workers_an_actor_lived(old: TestClient, current: TestClient) -> None:
    """The latest incarnation has the log that is shown."""
    query = f"api/history/rows/actor_transitions?where=actor_id%3D{ACTOR}"
    before, after = (client.get(query).json()["rows"] for client in (old, current))
    assert {row["worker_id"] for row in before} - {None} == {row["worker_id"] for row in after} - {None}


def test_spans_of_the_dashboard_complete_those_of_events(old: TestClient, current: TestClient) -> None:
    """A span that both have is shown once."""
    before, after = (
        next(row for row in rows(client, "tasks") if row["task_id"] == PROFILED["task_id"])["profiling_data"]
        for client in (old, current)
    )
    assert after["events"]
    assert before == after | {"events": [*after["events"], LATER_SPAN]}


def test_timeline_has_the_spans_of_the_dashboard(old: TestClient, current: TestClient) -> None:
    before, after = (
        [(event["name"], event["ts"]) for event in client.get("api/v0/tasks/timeline").json() if event["ph"] == "X"]
        for client in (old, current)
    )
    assert sorted([*after, ("checkpoint", 1e15)]) == sorted(before)
