"""Lists of the State API: rows, filters, envelope and messages as in Ray."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from support.recorded_sample import NODE, live, live_rows, serving

Rows = list[dict[str, Any]]

FLAKY = "e0dc174c83599034ffffffffffffffffffffffff01000000"
SLEEPER = "5d4b8d1788f12d2dffffffffffffffffffffffff01000000"
DETACHED = "8a561470475d4901e09868de01000000"
INTERNAL_DRIVER = "02000000" + "f" * 48
DETACHED_WORKER = "8abaf130ab0f5c41674bf40d9d4802072a1de0b5d0c775f42735ab36"

KEYS = {
    "tasks": ("task_id", "attempt_number"),
    "actors": ("actor_id",),
    "nodes": ("node_id",),
    "workers": ("worker_id",),
    "placement_groups": ("placement_group_id",),
    "jobs": ("job_id", "submission_id"),
    "runtime_envs": ("node_id",),
}

CHANGED: dict[str, dict[str, set[str]]] = {
    # Running when the live response was recorded; the worker ended with its job soon after.
    SLEEPER: {"tasks": {"state", "error_type", "error_message", "events", "end_time_ms"}},
    # Open at session end, which Ray does not export: the state is inferred.
    "f" * 40 + "02000000": {
        "tasks": {"state", "error_type", "error_message", "events", "end_time_ms", "profiling_data"}
    },
    DETACHED: {"actors": {"state"}},
    NODE: {"nodes": {"state", "state_message", "end_time_ms"}},
    INTERNAL_DRIVER: {"workers": {"is_alive", "exit_detail", "end_time_ms"}},
    DETACHED_WORKER: {"workers": {"is_alive", "exit_detail", "end_time_ms"}},
}
"""Fields in which a stored session differs from the live response, with the reason."""

LATER: dict[str, set[Any]] = {
    "tasks": {
        # Only the worker exported events of these tasks: Ray drops them, the history server shows them.
        "17f2b76b455887adffffffffffffffffffffffff01000000",
        "37ae34bb096fa216ffffffffffffffffffffffff01000000",
        # Created after the live responses were recorded.
        "f" * 40 + "04000000",
        "f" * 40 + "05000000",
        "f" * 40 + "06000000",
    },
    "actors": {"4b0a60c3ef4ffcb4a6713f3f02000000"},
    "workers": {"8e5d226eca14bbe9981dca1e281cf70023a3b0652d55f13cd23e267f"},
    "jobs": {(None, "sub-echo")},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("state")) as client:
        yield client


def get_result(client: TestClient, resource: str, *filters: tuple[str, str, str], **options: object) -> dict[str, Any]:
    response = client.get(f"api/v0/{resource}", params=parameters(*filters, **options))
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["result"], body["msg"]) == (True, "")
    result: dict[str, Any] = body["data"]["result"]
    return result


def parameters(*filters: tuple[str, str, str], **options: object) -> httpx2.QueryParams:
    pairs: list[tuple[str, str | int | float | bool | None]] = [(key, str(value)) for key, value in options.items()]
    for key, predicate, value in filters:
        pairs += [("filter_keys", key), ("filter_predicates", predicate), ("filter_values", value)]
    return httpx2.QueryParams(pairs)


def rows(client: TestClient, resource: str, *filters: tuple[str, str, str], **options: object) -> Rows:
    found: Rows = get_result(client, resource, *filters, **options)["result"]
    return found


@pytest.mark.parametrize(
    ("sample", "resource", "options"),
    [
        ("v0_tasks", "tasks", {}),
        ("v0_tasks_detail", "tasks", {"detail": 1}),
        ("v0_tasks_with_driver", "tasks", {"detail": "True", "exclude_driver": "False"}),
        ("v0_actors", "actors", {}),
        ("v0_actors_detail", "actors", {"detail": "true"}),
        ("v0_nodes", "nodes", {}),
        ("v0_nodes_detail", "nodes", {"detail": 1}),
        ("v0_workers", "workers", {}),
        ("v0_workers_detail", "workers", {"detail": 1}),
        ("v0_placement_groups_detail", "placement_groups", {"detail": 1}),
        ("v0_jobs", "jobs", {}),
        ("v0_jobs_detail", "jobs", {"detail": 1}),
        ("v0_runtime_envs", "runtime_envs", {}),
        ("v0_runtime_envs_detail", "runtime_envs", {"detail": 1}),
    ],
)
def test_rows_match_the_live_dashboard(
    client: TestClient, sample: str, resource: str, options: dict[str, object]
) -> None:
    """Compare field by field, except for changes after the live response."""
    ours = {identity(resource, row): row for row in rows(client, resource, **options)}
    for expected in live_rows(sample):
        row = ours.pop(identity(resource, expected))
        may_differ = CHANGED.get(str(expected[KEYS[resource][0]]), {}).get(resource, set())
        assert row.keys() == expected.keys()
        assert {k: v for k, v in row.items() if k not in may_differ} == {
            k: v for k, v in expected.items() if k not in may_differ
        }
    allowed = LATER.get(resource, set())
    assert {key if resource == "jobs" else key[0] for key in ours} <= allowed


def identity(resource: str, row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEYS[resource])


def test_rows_pass_the_validation_of_ray_clients(client: TestClient) -> None:
    """Clients reject a whole list for one missing field or unknown value."""
    common = pytest.importorskip("ray.util.state.common")
    for resource in [*KEYS, "cluster_events", "objects"]:
        for detail in (0, 1):
            for row in rows(client, resource, detail=detail, exclude_driver=0):
                common.dict_to_state(row, common.StateResource(resource))


def test_open_task_gets_a_final_failed_event(client: TestClient) -> None:
    [sleeper] = rows(client, "tasks", ("task_id", "=", SLEEPER), detail=1)
    assert sleeper["events"][-1] == {"state": "FAILED", "created_ms": sleeper["end_time_ms"]}
    assert sleeper["task_log_info"] is not None
    assert "stdout_end" not in sleeper["task_log_info"]


def test_attempts_are_separate_rows_newest_first(client: TestClient) -> None:
    found = get_result(client, "tasks", ("name", "=", "FLAKY"))
    expected = live("filter_case")["data"]["result"]
    assert found["result"] == expected["result"]
    assert (found["total"], found["num_filtered"]) == (expected["total"], expected["num_filtered"])


@pytest.mark.parametrize("resource", ["tasks", "actors", "workers", "placement_groups", "jobs"])
def test_lists_are_sorted_by_id(client: TestClient, resource: str) -> None:
    key = KEYS[resource][0]
    ids = [row[key] or "" for row in rows(client, resource, exclude_driver=0)]
    assert ids == sorted(ids)
    assert len(ids) > 1


def test_limit_does_not_change_the_counts(client: TestClient) -> None:
    found = get_result(client, "tasks", ("state", "=", "finished"), limit=3)
    assert len(found["result"]) == 3
    assert found["num_filtered"] > 3
    assert found["total"] == found["num_after_truncation"] == found["num_filtered"]


def test_filter_that_ray_applies_late_does_not_change_the_total(client: TestClient) -> None:
    found = get_result(client, "tasks", ("type", "=", "ACTOR_TASK"))
    assert found["num_filtered"] == len(found["result"]) == 7
    assert found["total"] == found["num_after_truncation"] == 23


def test_limit_above_the_maximum_of_ray_is_accepted(client: TestClient) -> None:
    assert len(rows(client, "tasks", limit=20_000)) == 23
    assert rows(client, "tasks", limit=0) == []


@pytest.mark.parametrize(
    ("resource", "state_filter", "matches"),
    [
        ("tasks", ("attempt_number", "=", "1"), lambda row: row["attempt_number"] == 1),
        ("tasks", ("attempt_number", "!=", "0"), lambda row: row["attempt_number"] != 0),
        ("tasks", ("worker_pid", "=", "16292"), lambda row: row["worker_pid"] == 16292),
        ("tasks", ("error_type", "=", "actor_died"), lambda row: row["error_type"] == "ACTOR_DIED"),
        ("tasks", ("error_type", "!=", "ACTOR_DIED"), lambda row: row["error_type"] not in (None, "ACTOR_DIED")),
        ("tasks", ("actor_id", "=", DETACHED.upper()), lambda row: row["actor_id"] == DETACHED),
        ("tasks", ("actor_id", "!=", DETACHED), lambda row: row["actor_id"] != DETACHED),
        ("tasks", ("parent_task_id", "=", "f" * 48), lambda row: row["parent_task_id"] == "f" * 48),
        ("tasks", ("node_id", "=", ""), lambda row: False),
        ("tasks", ("STATE", "!=", "Finished"), lambda row: row["state"] != "FINISHED"),
        ("actors", ("name", "=", ""), lambda row: row["name"] == ""),
        ("actors", ("name", "!=", ""), lambda row: row["name"] != ""),
        ("actors", ("state", "=", "dead"), lambda row: row["state"] == "DEAD"),
        ("actors", ("placement_group_id", "!=", "x"), lambda row: False),
        ("workers", ("is_alive", "=", "true"), lambda row: row["is_alive"]),
        ("workers", ("is_alive", "!=", "1"), lambda row: not row["is_alive"]),
        ("workers", ("exit_type", "!=", "SYSTEM_ERROR"), lambda row: row["exit_type"] not in (None, "SYSTEM_ERROR")),
        ("workers", ("pid", "=", "9" * 40), lambda row: False),
        ("workers", ("debugger_port", "=", "1"), lambda row: False),
        ("nodes", ("is_head_node", "=", "True"), lambda row: row["is_head_node"]),
        ("placement_groups", ("is_detached", "=", "false"), lambda row: not row["is_detached"]),
        ("jobs", ("type", "=", "submission"), lambda row: row["type"] == "SUBMISSION"),
        ("jobs", ("job_id", "!=", "01000000"), lambda row: row["job_id"] != "01000000"),
        ("runtime_envs", ("success", "=", "true"), lambda row: row["success"]),
    ],
)
def test_filters_match_as_in_ray(
    client: TestClient, resource: str, state_filter: tuple[str, str, str], matches: Callable[[dict[str, Any]], bool]
) -> None:
    everything = rows(client, resource, detail=1, exclude_driver=0, limit=1000)
    found = rows(client, resource, state_filter, detail=1, exclude_driver=0, limit=1000)
    assert found == [row for row in everything if matches(row)]


def test_not_equal_on_optional_numbers_matches_every_row_as_in_ray(client: TestClient) -> None:
    """Ray compares the text with the number, so no value is equal."""
    assert rows(client, "actors", ("pid", "!=", "16653")) == rows(client, "actors")


def test_all_filters_must_match(client: TestClient) -> None:
    found = rows(client, "tasks", ("name", "=", "flaky"), ("state", "=", "FAILED"))
    assert [(row["task_id"], row["attempt_number"]) for row in found] == [(FLAKY, 0)]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tasks?limit=many", "limit: invalid literal for int() with base 10: 'many'"),
        ("tasks?limit=-1", "Given limit -1 is negative. Use 0 or more."),
        ("tasks?timeout=soon", "timeout: invalid literal for int() with base 10: 'soon'"),
        ("tasks?detail=maybe", "Failed to convert a value maybe of type <class 'str'> to <class 'bool'>"),
        ("actors?filter_keys=name",
         "1 filter_keys, 0 filter_predicates and 0 filter_values are given. Each filter needs one of each."),
        ("tasks?filter_keys=name&filter_predicates=contains&filter_values=x",
         "Unsupported filter predicate contains is given. Available predicates: =, !=."),
        ("tasks?filter_keys=attempt_number&filter_predicates=%3D&filter_values=x",
         "Invalid filter `--filter attempt_number x` for a int type column. Please provide an integer filter "
         "`--filter attempt_number [int]`"),
        ("workers?filter_keys=is_alive&filter_predicates=%3D&filter_values=x",
         "Invalid filter `--filter is_alive x` for a boolean type column. Please provide "
         "`--filter is_alive [True|true|1]` for True or `--filter is_alive [False|false|0]` for False."),
        ("actors?filter_keys=state&filter_predicates=%3D&filter_values=gone",
         "Invalid actor state for filtering: GONE"),
        ("nodes?filter_keys=state&filter_predicates=%3D&filter_values=gone", "Invalid node state for filtering: GONE"),
        ("tasks?filter_keys=job_id&filter_predicates=!%3D&filter_values=01",
         "ID string needs to have length 4, got 1"),
        ("nodes?filter_keys=node_id&filter_predicates=%3D&filter_values=zz",
         "Non-hexadecimal digit found: 'zz' is not an id"),
    ],
)  # fmt: skip
def test_invalid_request_gets_the_error_of_ray(client: TestClient, address: str, message: str) -> None:
    response = client.get(f"api/v0/{address}")
    assert response.status_code == 400
    assert response.json() == {"result": False, "msg": message, "data": {"result": None}}


def test_unknown_column_error_lists_the_valid_ones(client: TestClient) -> None:
    response = client.get("api/v0/tasks", params=parameters(("zzz", "=", "1")))
    expected = live("bad_col")["msg"]
    assert response.status_code == 400
    assert sorted(response.json()["msg"].replace("{", " ").replace("}", ",").split()) == sorted(
        expected.replace("{", " ").replace("}", ",").split()
    )


def test_unusual_filter_values_match_nothing(client: TestClient) -> None:
    for value in ("\0", "'; DROP TABLE tasks; --", "%", "\ud7ff😀"):
        assert rows(client, "tasks", ("name", "=", value)) == []


def test_list_of_objects_warns_that_they_are_not_recorded(client: TestClient) -> None:
    found = get_result(client, "objects")
    assert (found["result"], found["total"]) == ([], 0)
    assert "not recorded" in found["warnings"][0]


def test_environment_variables_are_masked_for_browsers(client: TestClient) -> None:
    browser = {"User-Agent": "Mozilla/5.0"}
    for resource in ("tasks", "actors", "jobs", "runtime_envs"):
        shown = client.get(f"api/v0/{resource}?detail=1", headers=browser).text
        reported = client.get(f"api/v0/{resource}?detail=1").text
        assert '"bar' not in shown.replace("\\", "")
        assert "<redacted>" in shown
        assert '"bar' in reported.replace("\\", "")
        json.loads(shown)
