"""A store that release 0.1.0 wrote opens, and gives the responses that 0.1.0 gave."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.gaps import GapCode
from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from support.store_0_1_0 import ENDED, NODE, OLD_LAYOUT, OWNED, VANISHED, WORKER_LOG, extract, recorded_responses

pytestmark = pytest.mark.slow

RESPONSES = recorded_responses()
SESSIONS = (ENDED, OWNED, OLD_LAYOUT, VANISHED)
STATE_LISTS = ("tasks", "actors", "nodes", "jobs", "workers", "placement_groups")
FOUND_SINCE = (GapCode.TASK_WITHOUT_EXECUTION, GapCode.TASK_EXECUTION_UNREPORTED, GapCode.TABLE_EMPTY)
TABLES = sorted(set(RESPONSES[ENDED]["tables"]) - {"gaps"})


@pytest.fixture(scope="module", params=["index of 0.1.0", "no index"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("store")
    store = extract("store", directory)
    if request.param == "no index":
        shutil.rmtree(store / "ray-history" / "index")
    settings, _ = resolve(
        "historyserver",
        {"setting_local_storage_dir": str(store), "setting_cache_dir": str(directory / "cache")},
        {"RAYHISTORY_INDEX_AHEAD": "false"},
    )
    with TestClient(create_app(settings)) as client:
        yield client


def get(server: TestClient, session: str, path: str) -> Any:
    response = server.get(f"/s/default/test/{session}/{path}")
    assert response.status_code == 200, response.text
    return response.json()


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def without_drivers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row.get("type") != "DRIVER_TASK"]


def test_sessions_are_listed_with_their_states_and_owners(server: TestClient) -> None:
    fields = ("namespace", "cluster", "session", "state", "owner_kind", "owner_name", "started_ms", "ended_ms", "url")
    listed = server.get("/api/history/sessions").json()["sessions"]
    recorded = RESPONSES["sessions"]["sessions"]
    assert [[entry[field] for field in fields] for entry in listed] == [
        [entry[field] for field in fields] for entry in recorded
    ]
    assert {entry["session"]: entry["state"] for entry in listed} == {
        ENDED: "ended", OWNED: "ended", OLD_LAYOUT: "ended", VANISHED: "vanished"
    }  # fmt: skip


@pytest.mark.parametrize("name", STATE_LISTS)
@pytest.mark.parametrize("session", SESSIONS)
def test_state_api_lists_the_recorded_rows(server: TestClient, session: str, name: str) -> None:
    rows = get(server, session, f"api/v0/{name}?detail=1&limit=10000")["data"]["result"]["result"]
    assert in_order(rows) == in_order(RESPONSES[session]["state"][name])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("session", SESSIONS)
def test_tables_have_the_recorded_rows(server: TestClient, session: str, table: str) -> None:
    """A later release may add columns. A driver without a reported end was FAILED in 0.1.0, and is FINISHED now."""
    rows = without_drivers(get(server, session, f"api/history/rows/{table}?limit=10000")["rows"])
    recorded = without_drivers(RESPONSES[session]["tables"][table])
    columns = recorded[0] if recorded else {}
    assert in_order([{name: row[name] for name in columns} for row in rows]) == in_order(recorded)


@pytest.mark.parametrize("session", SESSIONS)
def test_gaps_are_counted_as_recorded(server: TestClient, session: str) -> None:
    """The text of a gap may change with a release, its columns and counts may not. A release may find more gaps.

    In 0.1.0 a driver without a reported end counted as an open task.
    """
    found = get(server, session, "api/history/rows/gaps?limit=10000")["rows"]
    rows = [row for row in found if row["kind"] not in FOUND_SINCE]
    recorded = RESPONSES[session]["tables"]["gaps"]
    tasks = RESPONSES[session]["tables"]["tasks"]
    drivers = sum(row["closed_by_history"] and row["type"] == "DRIVER_TASK" for row in tasks)
    expected = [
        (row["count"] - (drivers if row["kind"] == "task closed at the session's end" else 0), row["source"])
        for row in recorded
    ]
    assert sorted((row["count"], row["source"]) for row in rows) == sorted(each for each in expected if each[0])
    assert all(row.keys() >= recorded[0].keys() for row in rows)


@pytest.mark.parametrize("session", SESSIONS)
def test_logs_are_listed_and_read_as_recorded(server: TestClient, session: str) -> None:
    assert get(server, session, f"api/v0/logs?node_id={NODE}")["data"]["result"] == RESPONSES[session]["logs"]
    path = f"/s/default/test/{session}/api/v0/logs/file?node_id={NODE}&filename={WORKER_LOG}&lines=-1"
    assert server.get(path).text == RESPONSES[session]["worker_log"]


@pytest.mark.parametrize("session", SESSIONS)
def test_metrics_have_the_recorded_points(server: TestClient, session: str) -> None:
    names = get(server, session, "api/history/metrics")["metrics"]
    assert names == RESPONSES[session]["metrics"]["metrics"]
    series = get(server, session, "api/history/metrics?name=ray_node_cpu_utilization")["series"]
    assert series == RESPONSES[session]["points"]["series"]
    assert bool(series) == (session == ENDED)
