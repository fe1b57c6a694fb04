"""The overview of a session: start, end, and markers of failures."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.history_api import failure_overview
from support.recorded_sample import REF, live_rows, serving

AS_OF_MS = 1_794_770_340_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("overview")) as client:
        client.get("api/jobs/")  # index the session before pages are opened
        yield client


def totals(markers: list[dict[str, int]]) -> dict[str, int]:
    return {kind: sum(marker[kind] for marker in markers) for kind in ("tasks", "actors", "jobs")}


def get_json(client: TestClient, path: str = "api/history/overview") -> dict[str, Any]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def test_overview_has_a_marker_for_each_failure(client: TestClient) -> None:
    """Failed tasks and one that ended with its job, an actor's restart and death, and two jobs."""
    found = get_json(client)
    failed = [row for row in live_rows("v0_tasks_detail") if row["state"] == "FAILED"]
    assert totals(found["failures"]) == {"tasks": len(failed) + 1, "actors": 2, "jobs": 2}
    times = [marker["at_ms"] for marker in found["failures"]]
    assert times == sorted(times)
    assert found["started_ms"] <= times[0] <= times[-1] <= found["last_ms"]
    assert {row["end_time_ms"] for row in failed if row["name"] == "suicide"} <= set(times)
    assert found["state"] == "ended"


def test_many_failures_share_few_markers(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = get_json(client)["failures"]
    monkeypatch.setattr(failure_overview, "MAX_MARKERS", 3)
    few = get_json(client, "api/history/overview?other=1")["failures"]
    assert len(everything) > 3 >= len(few)
    assert totals(few) == totals(everything)
    assert few[-1]["at_ms"] == everything[-1]["at_ms"]


@pytest.mark.slow
def test_overview_as_of_a_time_ends_there(client: TestClient) -> None:
    whole, then = get_json(client), get_json(client, f"http://testserver{REF.url[:-1]}@{AS_OF_MS}/api/history/overview")
    step_ms = (whole["last_ms"] - whole["started_ms"]) / 2**16 + 1  # close points in time share their tables
    assert AS_OF_MS <= then["last_ms"] <= AS_OF_MS + step_ms
    assert then["started_ms"] == whole["started_ms"]
    assert then["failures"]
    assert max(marker["at_ms"] for marker in then["failures"]) <= then["last_ms"]
    assert totals(then["failures"])["tasks"] < totals(whole["failures"])["tasks"]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ({}, False),
        ({"actor_died_error_context": {"reason": "OUT_OF_SCOPE", "error_message": "all references removed"}}, False),
        ({"actor_died_error_context": {"reason": "RAY_KILL"}}, False),
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "type: INTENDED_USER_EXIT"}}, False),
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "type: SYSTEM_ERROR"}}, True),
        ({"actor_died_error_context": {"reason": "NODE_DIED"}}, True),
        ({"actor_died_error_context": "malformed"}, True),
        ({"creation_task_failure_context": {}}, True),
        ({"oom_context": {"error_message": "out of memory"}}, True),
    ],
)
def test_intended_actor_death_is_no_failure(cause: dict[str, Any], expected: bool) -> None:
    assert failure_overview.is_unintended_death(cause) is expected


def test_unchanged_overview_gets_304(client: TestClient) -> None:
    tag = client.get("api/history/overview").headers["etag"]
    assert client.get("api/history/overview", headers={"If-None-Match": tag}).status_code == 304
