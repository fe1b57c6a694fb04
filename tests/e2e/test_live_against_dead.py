"""What the live dashboard of a real cluster answered, and what its history answers now, field by field."""

import contextlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml

from recorded import rays, several, workloads
from recorded.accepted import explanation
from recorded.commands import asked, environment
from recorded.compare import Comparison, Difference, compare
from recorded.printed import compare_printed
from recorded.questions import everything
from recorded.rays import HERE, LIBRARIES, PYTHONS
from recorded.recorder import MIXED, Recorded, on_one_node, recorded_once
from recorded.served import serving
from recorded.workloads import FAILING, RUNNING, SAMPLE

ENOUGH = 0.995

ENDPOINTS = {
    "tasks in detail": r"/api/v0/tasks\?detail=1&limit=10000",
    "tasks": r"/api/v0/tasks($|\?limit)",
    "one task": r"/api/v0/tasks\?detail=1&limit=\d+&filter_keys=task_id",
    "a filter that is none": r"/api/v0/tasks\?detail=1&filter_keys=color",
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
    "output of a job": r"/api/jobs/[\w-]+/logs$",
    "log listing": r"/api/v0/logs\?",
    "log files": r"/api/v0/logs/file\?node_id",
    "logs of a task": r"/api/v0/logs/file\?task_id",
    "logs of an actor": r"/api/v0/logs/file\?actor_id",
    "events": r"/events",
    "Serve": r"/api/serve/",
    "Data": r"/api/data/",
    "cluster": r"/api/(cluster_status|v0/cluster_metadata|version)|/timezone",
    "what is switched off": r"/api/(authentication_mode|profiling_enabled|v0/runtime_env_redaction|\w+_health)"
    r"|HEAD /api/v0/platform_events",
}


CASES = [
    *((python, MIXED) for python in PYTHONS),
    *((python, on_one_node(workload)) for python in LIBRARIES for workload in (workloads.data, workloads.serving)),
    *((HERE, several.nodes) for _ in LIBRARIES),
]


class Case(msgspec.Struct, frozen=True):
    """A recording, the server that serves it, and how their answers compare."""

    name: str
    python: str
    mixed: bool
    recorded: Recorded
    history: str
    comparisons: dict[str, Comparison]

    @property
    def address(self) -> str:
        return f"{self.history}{self.recorded.ref.url}"


@pytest.fixture(scope="session", params=CASES, ids=lambda case: f"{rays.name(case[0])}-{case[1].__name__}")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    python, recorder = request.param
    with contextlib.ExitStack() as stack:
        if request.param == (HERE, MIXED):
            recorded, history = request.getfixturevalue("recorded"), request.getfixturevalue("history")
        else:
            recorded = recorded_once(tmp_path_factory.mktemp("recorded"), python, recorder)
            history = stack.enter_context(serving(recorded.store, tmp_path_factory.mktemp("server")))
        name = f"Ray {'.'.join(map(str, recorded.version))}, {recorder.__name__}"
        yield Case(name, python, recorder is MIXED, recorded, history, compared(recorded, history))


def compared(recorded: Recorded, history: str) -> dict[str, Comparison]:
    """Every question once more, to the history."""
    found = {}
    with httpx.Client(base_url=history + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http:
        for name, live in recorded.answers.items():
            question = live.question
            dead = http.request(question.method, question.path, headers=question.headers)
            found[name] = compare(question, (live.status, live.text), (dead.status_code, dead.text))
    return found


def share(equal: int, unexplained: list[Difference]) -> float:
    return equal / (equal + len(unexplained)) if unexplained else 1.0


def report(title: str, total: int, equal: int, reasons: Counter[str], unexplained: list[Difference]) -> list[str]:
    """The share of all fields, and that of those without an accepted difference: only the second is held to a limit."""
    lines = [
        f"{equal / total:8.2%} of {total:6} fields are equal in {title};"
        f" {share(equal, unexplained):.2%} without {reasons.total()} accepted differences,"
        f" {len(unexplained)} unexplained"
    ]
    return lines + [f"{count:17} {reason}" for reason, count in reasons.most_common()]


def judged(case: Case, title: str, compared: list[Comparison], request: pytest.FixtureRequest) -> None:
    """Every difference is explained, and what is equal is reported."""
    differences = [difference for each in compared for difference in each.differences]
    explained = [(difference, explanation(difference, case.recorded.version)) for difference in differences]
    unexplained = [difference for difference, accepted in explained if accepted is None]
    reasons = Counter(accepted.reason for _, accepted in explained if accepted is not None)
    total, equal = sum(each.total for each in compared), sum(each.equal for each in compared)
    lines = report(f"{title} ({case.name})", total, equal, reasons, unexplained)
    request.node.user_properties.append(("equal fields", "\n".join(lines)))
    assert not unexplained, "\n".join(map(str, unexplained[:40]))
    assert share(equal, unexplained) >= ENOUGH


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_history_answers_what_the_live_dashboard_answered(
    endpoint: str, case: Case, request: pytest.FixtureRequest
) -> None:
    """Every field is equal, or differs for a reason that is written down."""
    about = [each for name, each in case.comparisons.items() if re.match(ENDPOINTS[endpoint], name)]
    if not about and (endpoint in ("Serve", "Data") or not case.mixed):
        pytest.skip("this workload has none")
    if case.name.endswith("data") and re.search("task|timeline", endpoint):
        pytest.skip("to ask about Data is itself a task, and a collector asks until the end")
    assert about
    judged(case, endpoint, about, request)


def test_rays_own_clients_print_what_they_printed_on_the_live_cluster(
    case: Case, request: pytest.FixtureRequest
) -> None:
    """Every list, get, summary and job command and SDK call of Ray's, with the client of the cluster's version."""
    printed = case.recorded.printed
    if not printed:
        pytest.skip("they were not asked")
    now = asked(case.python, *((case.address, each.call) for each in printed))
    compared = [compare_printed(each.call, each.answer, dead) for each, dead in zip(printed, now, strict=True)]
    judged(case, "what Ray's own clients print", compared, request)


def test_the_command_line_of_serve_tells_what_was_deployed(case: Case) -> None:
    """It takes the same address as Ray's other clients."""
    if not case.name.endswith("serving"):
        pytest.skip("this workload has none")
    done = subprocess.run(
        [Path(case.python).with_name("serve"), "status", "--address", case.address.rstrip("/")],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)["applications"]
    live = case.recorded.live("/api/serve/applications/")["applications"]
    assert live
    assert {name: application["status"] for name, application in told.items()} == {
        name: application["status"] for name, application in live.items()
    }
    for name, application in live.items():
        assert {
            deployment: (each["status"], sum(each["replica_states"].values()))
            for deployment, each in told[name]["deployments"].items()
        } == {
            deployment: (each["status"], len(each["replicas"]))
            for deployment, each in application["deployments"].items()
        }


def test_every_answer_is_compared_once(recorded: Recorded) -> None:
    """No endpoint is forgotten, and none is counted twice."""
    for name in recorded.answers:
        assert sum(bool(re.match(pattern, name)) for pattern in ENDPOINTS.values()) == 1, name


@pytest.mark.parametrize("vanished", [False, True], ids=["ended", "vanished"])
def test_nothing_is_left_open_when_the_cluster_is_gone(recorded: Recorded, history: str, vanished: bool) -> None:
    """What was open has an end: a state, a time that is not before its start, and a text that says why."""
    ref, how = (recorded.vanished, "vanished") if vanished else (recorded.ref, "ended")
    rows = {
        kind: httpx.get(f"{history}{ref.url.rstrip('/')}{everything(kind)}", timeout=60, trust_env=False).json()[
            "data"
        ]["result"]["result"]
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
    "an end that was none": ("tasks in detail", '"state":"FINISHED"', '"state":"FAILED"'),
    "a failure that was hidden": ("tasks in detail", '"state":"FAILED"', '"state":"FINISHED"'),
    "a wrong reason": ("tasks in detail", '"error_type":"TASK_EXECUTION_EXCEPTION"', '"error_type":"NODE_DIED"'),
    "a wrong count": ("task summary by function", '"FINISHED":8', '"FINISHED":7'),
    "an actor without its restart": ("actors in detail", '"num_restarts":"1"', '"num_restarts":"0"'),
    "an actor without a name": ("actors of the dashboard", '"name":"trainer"', '"name":""'),
    "a field that is missing": ("workers", '"worker_type":', '"workertype":'),
    "a job that failed otherwise": ("jobs", '"driver_exit_code":5', '"driver_exit_code":null'),
    "a log that is cut": ("log files", "Started a ray job", "Started"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_not_explained_away(mistake: str, recorded: Recorded, history: str) -> None:
    """The list of accepted differences lets no real one through."""
    endpoint, right, wrong = MISTAKES[mistake]
    unexplained = []
    with httpx.Client(base_url=history + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http:
        for name, live in recorded.answers.items():
            if re.match(ENDPOINTS[endpoint], name) and not live.question.browser:
                dead = http.request(live.question.method, live.question.path)
                compared = compare(
                    live.question, (live.status, live.text), (dead.status_code, dead.text.replace(right, wrong, 1))
                )
                unexplained += [each for each in compared.differences if explanation(each, recorded.version) is None]
    assert unexplained


MISPRINTS = {
    "an end that was none": ("ray list tasks --detail", "state: FINISHED", "state: FAILED"),
    "a wrong state in a table": ("ray list tasks", "FINISHED", "FAILED  "),
    "a wrong count": ("ray summary tasks", "FINISHED: 8", "FINISHED: 7"),
    "another name": ("ray list actors", "experiment-tracker", "experiment"),
    "a job that failed otherwise": ("ray job status failing-job", "exit code 5", "exit code 1"),
    "a log that is cut": ("ray job logs sample-job", "model published", ""),
}


@pytest.mark.parametrize("mistake", MISPRINTS)
def test_a_misprint_is_not_explained_away(mistake: str, recorded: Recorded) -> None:
    command, right, wrong = MISPRINTS[mistake]
    (live,) = [each for each in recorded.printed if each.call.name == command]
    dead = live.answer | {"out": live.answer["out"].replace(right, wrong, 1)}
    assert dead != live.answer
    compared = compare_printed(live.call, live.answer, dead)
    assert [each for each in compared.differences if explanation(each, recorded.version) is None]
