"""What the live dashboard of a real cluster answered, and what its history answers now, field by field."""

import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from conftest import SHARES
from recorded.accepted import Accepted, explanation
from recorded.compare import Comparison, Difference, compare
from recorded.recorder import Recorded

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
def comparisons(recorded: Recorded, history: str) -> Iterator[dict[str, Comparison]]:
    """Every question once more, to the history."""
    found = {}
    with httpx.Client(base_url=history + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http:
        for name, live in recorded.answers.items():
            question = live.question
            dead = http.request(question.method, question.path, headers=question.headers)
            found[name] = compare(question, (live.status, live.text), (dead.status_code, dead.text))
    return found


def report(title: str, total: int, equal: int, reasons: Counter[Accepted], unexplained: list[Difference]) -> list[str]:
    share = equal / (equal + len(unexplained))
    lines = [f"{share:8.2%} of {total:6} {title}: {reasons.total()} accepted, {len(unexplained)} unexplained"]
    return lines + [f"{count:17} {each.reason}" for each, count in reasons.most_common()]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_history_answers_what_the_live_dashboard_answered(
    endpoint: str, comparisons: dict[str, Comparison], request: pytest.FixtureRequest
) -> None:
    """Every field is equal, or differs for a reason that is written down."""
    asked = [each for name, each in comparisons.items() if re.match(ENDPOINTS[endpoint], name)]
    assert asked
    differences = [difference for each in asked for difference in each.differences]
    explained = [(difference, explanation(difference)) for difference in differences]
    unexplained = [difference for difference, reason in explained if reason is None]
    reasons = Counter(reason for _, reason in explained if reason is not None)
    total, equal = sum(each.total for each in asked), sum(each.equal for each in asked)
    request.config.stash[SHARES].extend(report(endpoint, total, equal, reasons, unexplained))
    assert not unexplained, "\n".join(map(str, unexplained[:40]))
    assert equal / (equal + len(unexplained)) >= ENOUGH


def test_every_answer_is_compared_once(recorded: Recorded) -> None:
    """No endpoint is forgotten, and none is counted twice."""
    for name in recorded.answers:
        assert sum(bool(re.match(pattern, name)) for pattern in ENDPOINTS.values()) == 1, name
