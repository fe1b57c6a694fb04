"""Tasks that spent most of their time waiting for resources."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import cluster_cpus, example_function, longest_span_ms, slow, total_ms
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts
from rayhistory.index.query.task_times import TimeTotals

_MIN_SHARE = 0.5
_MIN_SPAN_MS = 10_000
_MIN_WAIT_PER_TASK_MS = 1_000


def _find(facts: SessionFacts) -> list[Finding]:
    times = facts.times
    total = total_ms(times)
    waited = times.waiting_node_ms
    if not total or longest_span_ms(facts) < _MIN_SPAN_MS or waited < _MIN_WAIT_PER_TASK_MS * times.tasks:
        return []
    if waited / total < _MIN_SHARE:
        return []
    each = duration(waited / times.tasks)
    cpus = cluster_cpus(facts)
    return [
        slow(
            RULE.code,
            f"Tasks spent {waited / total:.0%} of their time waiting for resources, {each} each on a cluster with "
            f"{cpus:g} CPUs",
            suggestion="If this is too long, add nodes or request fewer resources per task.",
            tasks=times.tasks,
            severity="info",
        )
    ]


RULE = SessionRule(
    code="waiting_for_resources",
    severity="info",
    meaning="Tasks spent more than half of their time, and more than a second each, waiting for resources.",
    find=_find,
    example=Example(
        facts=SessionFacts(
            nodes=[NodeFacts(node_id="ef" * 28, resources={"CPU": 4.0})],
            functions=[example_function()],
            times=TimeTotals(tasks=20, waiting_node_ms=60_000, running_ms=20_000),
        ),
        headline="Tasks spent 75% of their time waiting for resources, 3.0 s each on a cluster with 4 CPUs",
    ),
)
