"""Responses of a live dashboard and of the history server, compared field by field."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml

from recorded import ray_versions, three_nodes, workloads
from recorded.client_calls import environment, run_calls
from recorded.client_output import compare_output
from recorded.compare import Comparison, compare
from recorded.dashboard_requests import full_list
from recorded.expected_differences import explanation
from recorded.parity import HEADING, compare_all, parity, table_row
from recorded.ray_versions import LIBRARIES, PYTHONS, THIS_PYTHON
from recorded.recorder import MIXED, Recording, on_one_node, record_once
from recorded.workloads import FAILING, RUNNING, SAMPLE
from support.server_process import running_server

MIN_EQUAL_SHARES = {(2, 55): 0.995, (2, 52): 0.99}
"""By the first version of Ray that reaches it."""

ENDPOINTS = {
    "tasks in detail": r"/api/v0/tasks\?detail=1&limit=10000",
    "tasks": r"/api/v0/tasks($|\?limit)",
    "one task": r"/api/v0/tasks\?detail=1&limit=\d+&filter_keys=task_id",
    "unknown filter": r"/api/v0/tasks\?detail=1&filter_keys=color",
    "task summary by function": r"/api/v0/tasks/summarize(?!.*lineage)",
    "task summary by lineage": r"/api/v0/tasks/summarize.*lineage",
    "timeline": r"/api/v0/tasks/timeline",
    "actors in detail": r"/api/v0/actors\?",
    "actors": r"/api/v0/actors$",
    "actor summary": r"/api/v0/actors/summarize",
    "actors of the dashboard": r"/logical/actors$",
    "one actor of the dashboard": r"/logical/actors/",
    "nodes": r"/api/v0/nodes",
    "nodes of the dashboard": r"/nodes\?",
    "one node of the dashboard": r"/nodes/",
    "workers": r"/api/v0/workers",
    "placement groups": r"/api/v0/placement_groups",
    "jobs": r"/api/v0/jobs",
    "jobs of the job API": r"/api/jobs/( in a browser)?$",
    "one job": r"/api/jobs/[\w-]+$",
    "job output": r"/api/jobs/[\w-]+/logs$",
    "log listing": r"/api/v0/logs\?",
    "log files": r"/api/v0/logs/file\?node_id",
    "logs of a task": r"/api/v0/logs/file\?task_id",
    "logs of an actor": r"/api/v0/logs/file\?actor_id",
    "events": r"/events",
    "Serve": r"/api/serve/",
    "Data": r"/api/data/",
    "cluster": r"/api/(cluster_status|v0/cluster_metadata|version)|/timezone",
    "disabled features": r"/api/(authentication_mode|profiling_enabled|v0/runtime_env_redaction|\w+_health)"
    r"|HEAD /api/v0/platform_events",
}


CASES = [
    *((python, MIXED) for python in PYTHONS),
    *((python, on_one_node(workload)) for python in LIBRARIES for workload in (workloads.data, workloads.serving)),
    *((THIS_PYTHON, three_nodes.three_nodes) for _ in LIBRARIES),
]


class Case(msgspec.Struct, frozen=True):
    """A recording, its server, and the comparison of live and dead responses."""

    name: str
    python: str
    mixed: bool
    recorded: Recording
    history: str
    comparisons: dict[str, Comparison]

    @property
    def address(self) -> str:
        return f"{self.history}{self.recorded.ref.url}"


@pytest.fixture(scope="session", params=CASES, ids=lambda case: f"{ray_versions.name(case[0])}-{case[1].__name__}")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    python, recorder = request.param
    with contextlib.ExitStack() as stack:
        if request.param == (THIS_PYTHON, MIXED):
            recorded, history = request.getfixturevalue("recorded"), request.getfixturevalue("history")
        else:
            recorded = record_once(tmp_path_factory.mktemp("recorded"), python, recorder)
            history = stack.enter_context(running_server(recorded.store, tmp_path_factory.mktemp("server")))
        name = f"Ray {'.'.join(map(str, recorded.version))}, {recorder.__name__}"
        yield Case(name, python, recorder is MIXED, recorded, history, compare_all(recorded, history))


def check(case: Case, title: str, comparisons: list[Comparison], request: pytest.FixtureRequest) -> None:
    """Fail on unexplained differences, and report the share of equal fields and the reasons of others."""
    differences = [difference for each in comparisons for difference in each.differences]
    unexplained = [each for each in differences if explanation(each, case.recorded.version) is None]
    found = parity(comparisons, case.recorded.version)
    lines = [f"{found.share:8.2%} of {found.compared:6} compared fields are equal in {title} ({case.name})"]
    lines += [f"{count:17} {reason}" for reason, count in found.reasons.most_common()]
    request.node.user_properties.append(("equal fields", "\n".join(lines)))
    assert not unexplained, "\n".join(map(str, unexplained[:40]))


def test_share_of_equal_fields(case: Case, request: pytest.FixtureRequest) -> None:
    """Of all responses, also logs by task; `recorded.parity` prints the same table."""
    if not case.mixed:
        pytest.skip("the limits are those of the mixed workload")
    found = parity(case.comparisons.values(), case.recorded.version)
    request.node.user_properties.append(("equal fields", f"{HEADING}\n{table_row(case.recorded.version, found)}"))
    (limit, *_) = [share for since, share in MIN_EQUAL_SHARES.items() if case.recorded.version >= since]
    assert found.share >= limit


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_responses_equal_those_of_the_live_dashboard(endpoint: str, case: Case, request: pytest.FixtureRequest) -> None:
    """Every field is equal, or differs for a documented reason."""
    comparisons = [each for name, each in case.comparisons.items() if re.match(ENDPOINTS[endpoint], name)]
    if not comparisons and (endpoint in ("Serve", "Data") or not case.mixed):
        pytest.skip("this workload has none")
    if case.name.endswith("data") and re.search("task|timeline", endpoint):
        pytest.skip("requests about Ray Data start tasks, and the collector polls until the end")
    assert comparisons
    check(case, endpoint, comparisons, request)


def test_ray_clients_print_the_same_as_on_the_live_cluster(case: Case, request: pytest.FixtureRequest) -> None:
    """All list, get, summary and job commands and SDK calls, with the client of the cluster's version."""
    outputs = case.recorded.outputs
    if not outputs:
        pytest.skip("not recorded for this case")
    results = run_calls(case.python, *((case.address, each.call) for each in outputs))
    comparisons = [compare_output(each.call, each.result, dead) for each, dead in zip(outputs, results, strict=True)]
    check(case, "the output of Ray's own clients", comparisons, request)


def test_serve_status_lists_the_deployments(case: Case) -> None:
    if not case.name.endswith("serving"):
        pytest.skip("this workload has none")
    done = subprocess.run(
        [Path(case.python).with_name("serve"), "status", "--address", case.address.rstrip("/")],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = yaml.safe_load(done.stdout)["applications"]
    live = case.recorded.live("/api/serve/applications/")["applications"]
    assert live
    assert {name: application["status"] for name, application in printed.items()} == {
        name: application["status"] for name, application in live.items()
    }
    for name, application in live.items():
        assert {
            deployment: (each["status"], sum(each["replica_states"].values()))
            for deployment, each in printed[name]["deployments"].items()
        } == {
            deployment: (each["status"], len(each["replicas"]))
            for deployment, each in application["deployments"].items()
        }


def test_every_recorded_response_belongs_to_one_endpoint(recorded: Recording) -> None:
    for name in recorded.responses:
        assert sum(bool(re.match(pattern, name)) for pattern in ENDPOINTS.values()) == 1, name


@pytest.mark.parametrize("vanished", [False, True], ids=["ended", "vanished"])
def test_no_state_is_open_after_the_end(recorded: Recording, history: str, vanished: bool) -> None:
    """Open tasks, actors, nodes and jobs get an end state, an end time after their start, and a reason."""
    ref, how = (recorded.vanished, "vanished") if vanished else (recorded.ref, "ended")
    rows = {
        kind: httpx.get(f"{history}{ref.url.rstrip('/')}{full_list(kind)}", timeout=60, trust_env=False).json()["data"][
            "result"
        ]["result"]
        for kind in ("tasks", "actors", "nodes", "workers", "jobs")
    }
    assert {row["state"] for row in rows["tasks"]} == {"FINISHED", "FAILED"}
    assert {row["state"] for row in rows["actors"] + rows["nodes"]} == {"DEAD"}
    assert {row["is_alive"] for row in rows["workers"]} == {False}
    statuses = {row["submission_id"]: row["status"] for row in rows["jobs"]}
    assert statuses == {SAMPLE: "SUCCEEDED", FAILING: "FAILED", RUNNING: "FAILED" if vanished else "STOPPED"}
    closed = [row for row in rows["tasks"] if row["error_type"] == "NODE_DIED"]
    assert sorted(row["name"] for row in closed) == ["unplaced:Watcher.__init__", "wait_for_ever", "wait_for_ever"]
    assert all(row["error_message"].startswith(f"The session {how} at ") for row in closed)
    for row in rows["tasks"] + rows["workers"] + rows["nodes"]:
        assert row["end_time_ms"] >= (row["start_time_ms"] or 0)


MISTAKES = {
    "wrong end state": ("tasks in detail", '"state":"FINISHED"', '"state":"FAILED"'),
    "hidden failure": ("tasks in detail", '"state":"FAILED"', '"state":"FINISHED"'),
    "wrong error type": ("tasks in detail", '"error_type":"TASK_EXECUTION_EXCEPTION"', '"error_type":"NODE_DIED"'),
    "wrong count": ("task summary by function", '"FINISHED":8', '"FINISHED":7'),
    "lost actor restart": ("actors in detail", '"num_restarts":"1"', '"num_restarts":"0"'),
    "lost actor name": ("actors of the dashboard", '"name":"trainer"', '"name":""'),
    "missing field": ("workers", '"worker_type":', '"workertype":'),
    "wrong exit code": ("jobs", '"driver_exit_code":5', '"driver_exit_code":null'),
    "truncated log": ("log files", "Started a ray job", "Started"),
    "log of another task": ("logs of a task", "loaded shard", "loaded"),
    "wrong place of output": ("tasks in detail", '"stdout_start":', '"stdout_start":1'),
    "wrong worker of an actor": ("actors of the dashboard", '"workerId":"', '"workerId":"ab'),
    "wrong worker on a node": ("nodes of the dashboard", '"workerId":"', '"workerId":"ab'),
    "wrong IP": ("nodes of the dashboard", '"ipAddress":"127.0.0.1"', '"ipAddress":"127.0.0.2"'),
    "wrong worker type": ("nodes of the dashboard", '"workerType":"WORKER"', '"workerType":"DRIVER"'),
    "wrong process id": ("one node of the dashboard", '"pid":', '"pid":1'),
    "impossible memory": ("nodes of the dashboard", '"rss":', '"rss":9999'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_value_is_not_an_expected_difference(mistake: str, recorded: Recording, history: str) -> None:
    endpoint, right, wrong = MISTAKES[mistake]
    unexplained = []
    with httpx.Client(base_url=history + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http:
        for name, live in recorded.responses.items():
            if re.match(ENDPOINTS[endpoint], name) and not live.request.browser:
                dead = http.request(live.request.method, live.request.path)
                comparison = compare(
                    live.request, (live.status, live.text), (dead.status_code, dead.text.replace(right, wrong, 1))
                )
                unexplained += [each for each in comparison.differences if explanation(each, recorded.version) is None]
    assert unexplained


WRONG_OUTPUT = {
    "wrong end state": ("ray list tasks --detail", "state: FINISHED", "state: FAILED"),
    "wrong state in a table": ("ray list tasks", "FINISHED", "FAILED  "),
    "wrong count": ("ray summary tasks", "FINISHED: 8", "FINISHED: 7"),
    "wrong name": ("ray list actors", "experiment-tracker", "experiment"),
    "wrong exit code": ("ray job status failing-job", "exit code 5", "exit code 1"),
    "truncated log": ("ray job logs sample-job", "model published", ""),
}


@pytest.mark.parametrize("mistake", WRONG_OUTPUT)
def test_wrong_output_is_not_an_expected_difference(mistake: str, recorded: Recording) -> None:
    command, right, wrong = WRONG_OUTPUT[mistake]
    (live,) = [each for each in recorded.outputs if each.call.name == command]
    dead = live.result | {"out": live.result["out"].replace(right, wrong, 1)}
    assert dead != live.result
    comparison = compare_output(live.call, live.result, dead)
    assert [each for each in comparison.differences if explanation(each, recorded.version) is None]
