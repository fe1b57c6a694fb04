"""Unexpected values in an index, which Ray never writes: every route still responds with the valid rest."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from rayhistory.server.api_routes import SESSION_ROUTES
from rayhistory.server.app import create_app
from rayhistory.server.ray_api import state_schema
from rayhistory.sessions import Layout
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.stored_manifest import describe_file

Change = tuple[str, list[Any]]

LAYOUT = Layout()
ACTOR = "8a561470475d4901e09868de01000000"
JOB = "01000000"
BROWSER = {"User-Agent": "Mozilla/5.0"}
LATER_NS = 1_900_000_000_000_000_000
URIS = (
    "/api/cluster_status", "/api/cluster_status?format=1", "/api/v0/cluster_metadata", "/timezone", "/api/version",
    "/api/serve/applications/", f"/api/data/datasets/{JOB}", "/api/train/v2/runs/v1", "/nodes?view=summary",
    f"/nodes/{NODE}", "/logical/actors", "/api/v0/runtime_envs?detail=1", "/api/grafana_health",
)  # fmt: skip
VALUES: dict[str, str] = {"node": NODE, "actor": ACTOR, "job": JOB, "table": "snapshots"}
QUERIES = ("api/cluster_status?format=1", "api/v0/tasks?detail=1", "api/v0/runtime_envs?detail=1", "nodes?view=summary")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = {"a": [value]}
    return value


SHAPES: dict[str, Any] = {
    "a list": ["x"],
    "nothing": None,
    "a text": "x",
    "a number": 1,
    "no data": {"data": None},
    "data that is a list": {"data": []},
    "data that is a text": {"data": "x"},
    "parts that are nothing": {
        "data": dict.fromkeys(("summary", "nodeLogicalResources", "detail", "actors", "result", "clusterStatus"))
    },
    "parts that are lists": {
        "data": {"summary": {}, "nodeLogicalResources": [], "detail": [], "actors": [], "result": [1]}
    },
    "parts of parts that are nothing": {
        "data": {
            "summary": [None, 1, {}, {"raylet": None}, {"raylet": []}, {"raylet": {"nodeId": None}}],
            "nodeLogicalResources": {NODE: None},
            "detail": {"raylet": None, "workers": None},
            "actors": {ACTOR: None},
            "result": {"result": None},
        }
    },
    "parts of parts that are others": {
        "data": {
            "summary": [{"raylet": {"nodeId": [NODE]}}, {"raylet": {"nodeId": {}}}, {"raylet": "x", "workers": 1}],
            "nodeLogicalResources": {NODE: ["x"]},
            "detail": {"raylet": ["x"], "workers": [None, 1, {"coreWorkerStats": {}}, {"coreWorkerStats": "x"}]},
            "actors": {ACTOR: "x"},
            "result": {"result": [None, 1, {"creation_time_ms": "soon"}, {"creation_time_ms": 10**400}, {}]},
        }
    },
    "depth": {
        "data": {
            "summary": [{"raylet": {"nodeId": NODE}, "x": nested(300)}],
            "detail": nested(300),
            "actors": {ACTOR: {"x": nested(300)}},
            "result": {"result": [{"runtime_env": nested(300)}]},
        },
        "applications": nested(300),
    },
}
"""Dashboard responses that Ray never sends; anyone who can write to the bucket can store them."""


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store and index the recorded session."""
    directory = tmp_path_factory.mktemp("untrusted")
    store_indexed_sample(settings_for(directory))
    with serve(directory) as client:
        assert client.get("api/v0/tasks?limit=1").status_code == 200
    return directory


def serve(directory: Path) -> TestClient:
    settings = dataclasses.replace(settings_for(directory), index_ahead=False, grafana_url="http://grafana.invalid")
    return TestClient(create_app(settings), base_url=f"http://testserver{REF.url}", follow_redirects=False)


@contextmanager
def serve_changed(indexed: Path, directory: Path, changes: dict[str, list[Change]]) -> Iterator[TestClient]:
    """Serve a copy of the session whose index tables were changed by these statements."""
    shutil.copytree(indexed / "store", directory / "store")
    (path,) = (directory / "store" / LAYOUT.index_prefix(REF)).glob("manifest-*.json")
    manifest = json.loads(path.read_bytes())
    for table, statements in changes.items():
        file = directory / "store" / LAYOUT.index_file_key(REF, manifest["build"], table, 0)
        with duckdb.connect() as database:
            database.execute(f"CREATE TABLE {table} AS FROM '{file}'")
            for statement, values in statements:
                database.execute(statement, values)
            database.execute(f"COPY {table} TO '{file}' (FORMAT parquet)")
        describe_file(manifest, table, file)
    path.write_bytes(json.dumps(manifest).encode())
    with serve(directory) as client:
        yield client


def session_paths() -> list[str]:
    """List the paths of all session routes but log files, whose absence is a 500 as in Ray."""
    paths = []
    for route in SESSION_ROUTES:
        if isinstance(route, Route) and not route.path.startswith("/api/v0/logs/"):
            path = route.path.lstrip("/")
            for name in route.param_convertors:
                path = path.replace(f"{{{name}}}", VALUES.get(name, "x")).replace(f"{{{name}:path}}", "x")
            paths.append(path)
    assert not [path for path in paths if "{" in path]
    return [*paths, *QUERIES]


@pytest.mark.parametrize("name", SHAPES)
def test_unexpected_dashboard_responses_break_no_route(indexed: Path, tmp_path: Path, name: str) -> None:
    body = json.dumps(SHAPES[name])
    added = [("INSERT INTO last_answers BY NAME SELECT ? AS uri, ? AS ns, ? AS body", [uri, LATER_NS, body])
             for uri in URIS]  # fmt: skip
    with serve_changed(indexed, tmp_path, {"last_answers": added}) as client:
        for path in session_paths():
            for headers in ({}, BROWSER):
                assert client.get(path, headers=headers).status_code < 500, path
        (node,) = client.get("nodes?view=summary").json()["data"]["summary"]
        assert (node["raylet"]["nodeId"], node["raylet"]["state"]) == (NODE, "ALIVE")
        assert client.get(f"nodes/{NODE}").json()["data"]["detail"]["raylet"]["nodeId"] == NODE
        assert client.get("logical/actors").json()["data"]["actors"][ACTOR]["actorId"] == ACTOR


@pytest.mark.parametrize("amount", [None, "many", [], {}, -1, 10**400, 1e300, True], ids=lambda amount: str(amount)[:9])
def test_invalid_resource_amount_is_left_out(indexed: Path, tmp_path: Path, amount: Any) -> None:
    resources = json.dumps({"CPU": 4.0, "GPU": amount, "memory": 2**30, "object_store_memory": amount})
    changes: dict[str, list[Change]] = {
        "nodes": [("UPDATE nodes SET resources = ?", [resources])],
        "last_answers": [("DELETE FROM last_answers", [])],
    }
    with serve_changed(indexed, tmp_path, changes) as client:
        resources_text = client.get("nodes?view=summary").json()["data"]["nodeLogicalResources"][NODE]
        assert {"0.0/4.0 CPU", "0B/1.00GiB memory"} <= set(resources_text.split("\n"))
        assert ("GPU" in resources_text) == (amount is True)
        assert client.get("api/v0/nodes?detail=1").status_code == 200


@pytest.mark.parametrize("seconds", [-(2**62), -1, 2**40, 2**62])
def test_event_with_an_impossible_time_hides_no_others(indexed: Path, tmp_path: Path, seconds: int) -> None:
    event = "INSERT INTO cluster_events BY NAME SELECT ? AS event_id, 'JOBS' AS source_type, ? AS pid, ? AS timestamp_s"
    pids = ["²", "٣", "9" * 5_000, "7", ""]
    rows = [(event, [str(number), pid, seconds]) for number, pid in enumerate(pids)]
    with serve_changed(indexed, tmp_path, {"cluster_events": [*rows, (event, ["good", "1", 1_794_770_300])]}) as client:
        listed = client.get("api/v0/cluster_events").json()["data"]["result"]["result"]
        assert {row["time"] for row in listed} == {
            "2026-11-15 19:18:20", "1970-01-01 00:00:00" if seconds < 0 else "9999-12-31 23:59:59"
        }  # fmt: skip
        events = client.get("events").json()["data"]["events"]["global"]
        by_id = {event["eventId"]: event["sourcePid"] for event in events}
        assert by_id == {"0": "²", "1": 3, "2": "9" * 5_000, "3": 7, "4": "", "good": 1}


GOOD_SPAN = '{"eventName": "good", "startTime": "1000", "endTime": "2000", "extraData": "{\\"name\\": \\"named\\"}"}'
SPANS = {
    "start of 400 digits": f'{{"eventName": "bad", "startTime": {"9" * 400}, "endTime": 1}}',
    "end of 400 digits as text": f'{{"eventName": "bad", "startTime": 1, "endTime": "{"9" * 400}"}}',
    "end beyond int64": f'{{"eventName": "bad", "startTime": 1, "endTime": "{2**63}"}}',
    "start of 1e308": '{"eventName": "bad", "startTime": 1e308, "endTime": 1}',
    "extra data that is not text": '{"eventName": "odd", "startTime": 1, "endTime": 2, "extraData": {"a": 1}}',
    "deeply nested extra data": '{"eventName": "odd", "startTime": 1, "endTime": 2, "extraData": "%s"}'
    % ("[" * 100_000),
}


@pytest.mark.parametrize("name", SPANS)
def test_invalid_span_is_left_out(indexed: Path, tmp_path: Path, name: str) -> None:
    spans = f"[{SPANS[name]}, {GOOD_SPAN}]"
    with serve_changed(
        indexed, tmp_path, {"profile_events": [("UPDATE profile_events SET spans = ?", [spans])]}
    ) as client:
        events = [event for event in client.get("api/v0/tasks/timeline").json() if event["ph"] == "X"]
        assert {(event["cat"], event["name"]) for event in events} - {("odd", "odd")} == {("good", "named")}
        tasks = client.get("api/v0/tasks?detail=1&limit=1000").json()["data"]["result"]["result"]
        names = {event["event_name"] for task in tasks for event in task["profiling_data"].get("events", ())}
        assert names - {"odd"} == {"good"}


@pytest.mark.parametrize("depth", [300, 100_000])
def test_deeply_nested_json_is_left_out(indexed: Path, tmp_path: Path, depth: int) -> None:
    """Use one depth that cannot be decoded, and one that cannot be encoded again."""
    deep = '{"env_vars": ' + '{"a":' * depth + "1" + "}" * depth + "}"
    columns = {
        "actors": ("runtime_env", "required_resources", "death_cause", "label_selector"),
        "tasks": ("runtime_env", "required_resources", "label_selector", "fallback_strategy"),
        "nodes": ("resources", "labels"),
        "placement_groups": ("bundles", "stats"),
        "jobs": ("runtime_env", "metadata"),
        "snapshots": ("body",),
    }
    changes: dict[str, list[Change]] = {
        table: [(f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)}", [deep] * len(names))]
        for table, names in columns.items()
    }
    with serve_changed(indexed, tmp_path, changes) as client:
        for path in [*session_paths(), *(f"api/v0/{name}?detail=1" for name in (*columns, "runtime_envs"))]:
            for headers in ({}, BROWSER):
                if path != "api/v0/snapshots?detail=1":
                    assert client.get(path, headers=headers).status_code < 500, path
        (node,) = client.get("nodes?view=summary").json()["data"]["summary"]
        assert node["raylet"]["resourcesTotal"] == {}


def test_unknown_enum_value_hides_no_list(indexed: Path, tmp_path: Path) -> None:
    """Ray's clients reject a whole list for one unknown value."""
    common = pytest.importorskip("ray.util.state.common")
    changes: dict[str, list[Change]] = {
        "tasks": [("UPDATE tasks SET type = 'FLYING_TASK'", [])],
        "task_list": [("UPDATE task_list SET type = 'FLYING_TASK'", [])],
        "actors": [("UPDATE actors SET state = 'MIGRATING'", [])],
        "nodes": [("UPDATE nodes SET state = 'DRAINING'", [])],
        "workers": [("UPDATE workers SET worker_type = 'HELPER', exit_type = 'BOREDOM'", [])],
        "placement_groups": [("UPDATE placement_groups SET state = 'SHRINKING'", [])],
        "jobs": [("UPDATE jobs SET status = 'PAUSED'", [])],
    }
    expected = {
        "tasks": {"type": "NORMAL_TASK"},
        "actors": {"state": "ALIVE"},
        "nodes": {"state": "ALIVE"},
        "workers": {"worker_type": "WORKER", "exit_type": "SYSTEM_ERROR"},
        "placement_groups": {"state": "PENDING"},
        "jobs": {"status": "RUNNING"},
    }
    with serve_changed(indexed, tmp_path, changes) as client:
        for resource, values in expected.items():
            for detail in (0, 1):
                path = f"api/v0/{resource}?detail={detail}&exclude_driver=0&limit=1000"
                rows = client.get(path).json()["data"]["result"]["result"]
                assert rows
                for row in rows:
                    common.dict_to_state(row, common.StateResource(resource))
                    assert {name: row[name] for name in values} == values
        assert {job["status"] for job in client.get("api/jobs/").json()} == {"RUNNING"}


def test_enum_values_are_those_of_ray() -> None:
    known = pytest.importorskip("ray._private.custom_types")
    jobs = pytest.importorskip("ray.dashboard.modules.job.common")
    for ours, rays in (
        (state_schema.TASK_TYPES, known.TASK_TYPE),
        (state_schema.ACTOR_STATES, known.ACTOR_STATUS),
        (state_schema.NODE_STATES, known.NODE_STATUS),
        (state_schema.WORKER_TYPES, known.WORKER_TYPE),
        (state_schema.EXIT_TYPES, known.WORKER_EXIT_TYPE),
        (state_schema.PLACEMENT_GROUP_STATES, known.PLACEMENT_GROUP_STATUS),
        (state_schema.JOB_STATUSES, [status.value for status in jobs.JobStatus]),
    ):
        assert sorted(ours) == sorted(rays)
