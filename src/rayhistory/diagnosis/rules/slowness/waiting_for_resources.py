"""Tasks that spent most of their time waiting for resources, and calls that waited for their busy actor."""

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
    return [*_scarce_resources(facts), *_busy_actors(facts)]


def _scarce_resources(facts: SessionFacts) -> list[Finding]:
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


def _busy_actors(facts: SessionFacts) -> list[Finding]:
    """Find the method whose calls waited most, if calls waited for their actors most of the time of all tasks."""
    calls = [each for each in facts.functions if each.type == "ACTOR_TASK"]
    worst = max(calls, key=lambda each: each.waiting_ms, default=None)
    total = total_ms(facts.times)
    if worst is None or not total or facts.times.waiting_actor_ms / total < _MIN_SHARE:
        return []
    each_ms = worst.waiting_ms / worst.count
    if worst.last_ms - worst.first_ms < _MIN_SPAN_MS or each_ms < _MIN_WAIT_PER_TASK_MS:
        return []
    return [
        slow(
            RULE.code,
            f"{worst.count:,} calls of {worst.function} waited {duration(each_ms)} each on average, because their "
            "actor was busy with other calls",
            suggestion="Spread the calls over several actors, or let an actor run several calls at once "
            "(max_concurrency, or async methods).",
            tasks=worst.count, severity="info", first_ms=worst.first_ms, last_ms=worst.last_ms,
        )
    ]  # fmt: skip


RULE = SessionRule(
    code="waiting_for_resources",
    severity="info",
    meaning="Tasks spent more than half of their time, and more than a second each, waiting for resources, or for "
    "an actor that was busy with other calls.",
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
