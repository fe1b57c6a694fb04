"""Nodes that died."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Counts, Evidence
from rayhistory.diagnosis.headlines import one_line, plural, size, things, utc
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import NodeFacts, NodeSamples, SessionFacts
from rayhistory.index.query.failure_groups import FailureGroups

_BEFORE_MS = 120_000
_FULL = 0.95


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    node = failure.node
    if node is None:
        return None
    death = Evidence(kind="node", id=node.node_id, text=one_line(node.message, 600), at_ms=node.end_ms)
    pressure = _pressure(node, facts)
    more = (Evidence(kind="metric", id=node.node_id, text=pressure, at_ms=node.end_ms),) if pressure else ()
    return Match(group="", evidence=(death, *more), cause=pressure)


def _pressure(node: NodeFacts, facts: SessionFacts) -> str:
    """Return the resource that was exhausted before the node died."""
    samples = facts.samples.get(node.node_id, NodeSamples())
    near = [each for each in (samples.cgroup_memory or samples.memory) if _is_before(each.at_ms, node)]
    peak = max(near, key=lambda each: each.share, default=None)
    if peak and peak.share >= _FULL:
        return f"its memory was full ({size(peak.used)} of {size(peak.total)})"
    cpu = [value for at_ms, value in samples.cpu if _is_before(at_ms, node)]
    return "its CPUs were fully used" if len(cpu) >= 3 and min(cpu[-3:]) >= 95 else ""


def _is_before(at_ms: int, node: NodeFacts) -> bool:
    return node.end_ms is not None and 0 <= node.end_ms - at_ms <= _BEFORE_MS


def _describe(group: Group, facts: SessionFacts) -> Words:
    node = group.first.node
    name = f"Node {node.ip or node.node_id[:8]}" if node and len(group.roots) == 1 else plural(len(group.roots), "node")
    followed = group.counts + Counts(nodes=-group.counts.nodes)
    losses = f", and {things(followed)} failed because of it" if followed.total else ""
    before = f": {group.match.cause}" if group.match.cause else ""
    return Words(
        headline=one_line(f"{name} died at {utc(group.first.at_ms)}{before}{losses}"),
        detail=one_line(node.message, 600) if node else "",
        suggestion="Check the machine or pod: events, kernel log and memory. Ray retries tasks with max_retries > 0 "
        "on other nodes.",
    )


def _example() -> SessionFacts:
    node = NodeFacts(node_id="ef" * 28, ip="10.0.0.7", state="DEAD", end_ms=1_800_000_000_500,
                     reason="UNEXPECTED_TERMINATION",
                     message="Unexpected termination: health check failed, missing too many heartbeats")  # fmt: skip
    task = failed_task("Task failed due to its node dying", error_type="NODE_DIED", node_id=node.node_id, count=500)
    output = "ray.exceptions.NodeDiedError: Task failed due to its node dying.\n"
    return SessionFacts(jobs=[failed_job(output)], nodes=[node], failures=FailureGroups([task], 500, 1))


RULE = FailureRule(
    code="node_lost",
    meaning="A node died unexpectedly: Ray lost its heartbeats, or its raylet exited.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline="Node 10.0.0.7 died at 2027-01-15 08:00:00 UTC, and 500 tasks, 1 job failed because of it",
    ),
)
