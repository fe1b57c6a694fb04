"""Drivers that wait for each task before they start the next."""

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import cluster_cpus, example_function, slow
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts
from rayhistory.index.query.task_times import FunctionTimes

_MIN_TASKS = 20
_MIN_SPAN_MS = 5_000
_MIN_BUSY = 0.7
_MAX_CONCURRENCY = 1.02
_MAX_WAIT = 0.2


def _find(facts: SessionFacts) -> list[Finding]:
    cpus = cluster_cpus(facts)
    if cpus < 2:
        return []
    return [_finding(each, cpus) for each in facts.functions if _is_serial(each)]


def _is_serial(each: FunctionTimes) -> bool:
    """Return True if tasks ran one at a time although resources were free."""
    span = each.last_ms - each.first_ms
    if each.type != "NORMAL_TASK" or not each.from_driver or each.count < _MIN_TASKS or span < _MIN_SPAN_MS:
        return False
    return _MIN_BUSY * span <= each.total_ms <= _MAX_CONCURRENCY * span and each.waiting_ms <= _MAX_WAIT * each.total_ms


def _finding(each: FunctionTimes, cpus: float) -> Finding:
    ideal = max(each.total_ms / cpus, each.max_ms)
    return slow(
        "serial_driver",
        f"{each.count:,} {each.function} tasks ran one after another for {duration(each.last_ms - each.first_ms)} on "
        f"a cluster with {cpus:g} CPUs",
        detail=f"In parallel they would take about {duration(ideal)}.",
        suggestion="Start all tasks before you get their results: ray.get([f.remote(x) for x in xs]) instead of "
                   "ray.get in a loop.",
        tasks=each.count, first_ms=each.first_ms, last_ms=each.last_ms,
    )  # fmt: skip


RULE = SessionRule(
    code="serial_driver",
    meaning="A driver ran at least 20 tasks of one function one after another, although the cluster has several CPUs.",
    find=_find,
    example=Example(
        facts=SessionFacts(
            nodes=[NodeFacts(node_id="ef" * 28, resources={"CPU": 8.0})],
            functions=[example_function(total_ms=19_000, last_ms=1_800_000_020_000)],
        ),
        headline="20 train tasks ran one after another for 20.0 s on a cluster with 8 CPUs",
    ),
)
