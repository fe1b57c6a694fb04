"""Sessions without metrics."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts


def _find(facts: SessionFacts) -> list[Finding]:
    if facts.has_metrics or not facts.nodes:
        return []
    return [
        slow(
            RULE.code,
            "No metrics were recorded, so memory, object store and GPUs were not checked",
            suggestion="Set --metrics-interval of the collector, and start Ray with --metrics-export-port.",
            severity="info",
        )
    ]


RULE = SessionRule(
    code="metrics_missing",
    severity="info",
    meaning="No metrics were recorded, so rules about memory and utilization could not run.",
    find=_find,
    example=Example(
        facts=SessionFacts(has_metrics=False, nodes=[NodeFacts(node_id="ef" * 28)]),
        headline="No metrics were recorded, so memory, object store and GPUs were not checked",
    ),
)
