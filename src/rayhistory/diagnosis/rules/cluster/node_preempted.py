"""Nodes that the cloud provider preempted."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, plural, utc
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts

_PREEMPTED = re.compile(r"preempt|spot (?:instance )?interrupt|node.{0,40}shutdown.{0,40}spot", re.IGNORECASE)
_WINDOW_MS = 180_000


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    node = failure.node
    if node is None:
        return None
    death = Evidence(kind="node", id=node.node_id, text=one_line(node.message, 600), at_ms=node.end_ms)
    if node.reason == "AUTOSCALER_DRAIN_PREEMPTED":
        return Match(evidence=(death,))
    event = next((each for each in facts.platform_events if node.end_ms and abs(each.at_ms - node.end_ms) <= _WINDOW_MS
                  and _PREEMPTED.search(f"{each.reason} {each.message}")), None)  # fmt: skip
    if event is None:
        return None
    text = one_line(f"{event.reason} {event.object_name}: {event.message}", 600)
    return Match(confidence="likely", evidence=(Evidence(kind="platform_event", text=text, at_ms=event.at_ms), death))


def _describe(group: Group, facts: SessionFacts) -> Words:
    node = group.first.node
    name = f"Node {node.ip or node.node_id[:8]}" if node and len(group.roots) == 1 else plural(len(group.roots), "node")
    return Words(
        headline=one_line(f"{name} was preempted at {utc(group.first.at_ms)}"),
        suggestion="Allow retries of tasks (max_retries) and restarts of actors (max_restarts), write checkpoints, "
        "or use nodes that are not preemptible.",
    )


RULE = FailureRule(
    code="node_preempted",
    meaning="The cloud provider or the autoscaler preempted a node, such as a spot instance.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(
            nodes=[NodeFacts(node_id="ef" * 28, ip="10.0.0.7", state="DEAD", reason="AUTOSCALER_DRAIN_PREEMPTED",
                             message="Terminated due to preemption", end_ms=1_800_000_000_500)],
        ),
        headline="Node 10.0.0.7 was preempted at 2027-01-15 08:00:00 UTC",
    ),
)  # fmt: skip
