"""Nodes on which the same function took longer than elsewhere."""

from statistics import median

from rayhistory.diagnosis.findings import Evidence, Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts
from rayhistory.index.query.task_times import NodeTimes

_FACTOR = 1.5
_MIN_DIFFERENCE_MS = 200
_MIN_TOTAL_MS = 5_000


def _find(facts: SessionFacts) -> list[Finding]:
    by_function: dict[tuple[str, str], list[NodeTimes]] = {}
    for times in facts.by_node:
        by_function.setdefault((times.job_id, times.function), []).append(times)
    return [
        _finding(facts, slowest, others) for times in by_function.values() for slowest, others in _slow_nodes(times)
    ]


def _slow_nodes(times: list[NodeTimes]) -> list[tuple[NodeTimes, float]]:
    found = []
    for each in times:
        rest = [other.median_ms for other in times if other is not each]
        usual = median(rest) if rest else 0.0
        if (
            rest
            and each.median_ms >= max(_FACTOR * usual, usual + _MIN_DIFFERENCE_MS)
            and each.total_ms >= _MIN_TOTAL_MS
        ):
            found.append((each, usual))
    return found


def _finding(facts: SessionFacts, each: NodeTimes, usual: float) -> Finding:
    node = facts.node(each.node_id)
    name = node.ip if node and node.ip else each.node_id[:8]
    return slow(
        "slow_node",
        f"{each.function} tasks took {duration(each.median_ms)} on node {name}, {each.median_ms / max(usual, 1):.1f} "
        f"times as long as on other nodes ({duration(usual)})",
        suggestion="Compare the node's CPU, memory, disk and GPU clocks with other nodes, or remove the node.",
        tasks=each.count, nodes=1,
        evidence=[Evidence(kind="node", id=each.node_id, text=f"median of {each.count} tasks")],
    )  # fmt: skip


RULE = SessionRule(
    code="slow_node",
    meaning="The same function took at least 1.5 times as long on one node as on the others.",
    find=_find,
    example=Example(
        facts=SessionFacts(
            nodes=[NodeFacts(node_id="ef" * 28, ip="10.0.0.7")],
            by_node=[
                NodeTimes(
                    job_id="01", function="train", node_id="ef" * 28, count=10, median_ms=3_000.0, total_ms=30_000
                ),
                NodeTimes(
                    job_id="01", function="train", node_id="aa" * 28, count=10, median_ms=1_000.0, total_ms=10_000
                ),
            ],
        ),
        headline="train tasks took 3.0 s on node 10.0.0.7, 3.0 times as long as on other nodes (1.0 s)",
    ),
)
