"""What the live dashboard of a real cluster answered, and what its history answers now, field by field."""

import re
from collections import Counter

import httpx
import pytest

from recorded.accepted import explanation
from recorded.compare import Comparison, Difference, compare
from recorded.questions import everything
from recorded.recorder import FAILING, RUNNING, SAMPLE, Recorded
from recorded.shares import SHARES

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
    "cluster": r"/api/(cluster_status|v0/cluster_metadata|version)|/timezone",
    "what is switched off": r"/api/(authentication_mode|profiling_enabled|v0/runtime_env_redaction|\w+_health)"
    r"|HEAD /api/v0/platform_events",
}


@pytest.fixture(scope="session")
def comparisons(recorded: Recorded, history: str) -> dict[str, Comparison]:
    """Every question once more, to the history."""
    found = {}
    with httpx.Client(base_url=history + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http:
        for name, live in recorded.answers.items():
            question = live.question
            dead = http.request(question.method, question.path, headers=question.headers)
            found[name] = compare(question, (live.status, live.text), (dead.status_code, dead.text))
    return found


def report(title: str, total: int, equal: int, reasons: Counter[str], unexplained: list[Difference]) -> list[str]:
    share = equal / (equal + len(unexplained))
    lines = [
        f"{share:8.2%} of {equal + len(unexplained):6} fields are equal in {title}; {reasons.total()} of {total} are"
        f" accepted differences, {len(unexplained)} unexplained"
    ]
    return lines + [f"{count:17} {reason}" for reason, count in reasons.most_common()]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_history_answers_what_the_live_dashboard_answered(
    endpoint: str, comparisons: dict[str, Comparison], request: pytest.FixtureRequest
) -> None:
    """Every field is equal, or differs for a reason that is written down."""
    asked = [each for name, each in comparisons.items() if re.match(ENDPOINTS[endpoint], name)]
    assert asked
    differences = [difference for each in asked for difference in each.differences]
    explained = [(difference, explanation(difference)) for difference in differences]
    unexplained = [difference for difference, accepted in explained if accepted is None]
    reasons = Counter(accepted.reason for _, accepted in explained if accepted is not None)
    total, equal = sum(each.total for each in asked), sum(each.equal for each in asked)
    request.config.stash[SHARES].extend(report(endpoint, total, equal, reasons, unexplained))
    assert not unexplained, "\n".join(map(str, unexplained[:40]))
    assert equal / (equal + len(unexplained)) >= ENOUGH


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
                unexplained += [each for each in compared.differences if explanation(each) is None]
    assert unexplained
