"""Helpers for rules about slowness: total times of tasks, and findings about functions."""

from rayhistory.diagnosis.findings import Counts, Evidence, Finding, Severity
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.task_times import FunctionTimes, TimeTotals


def slow(
    code: str, headline: str, *, detail: str = "", suggestion: str = "", tasks: int = 0, nodes: int = 0,
    severity: Severity = "warning", first_ms: int | None = None, last_ms: int | None = None,
    evidence: list[Evidence] | None = None,
) -> Finding:  # fmt: skip
    """Return a finding about slowness, which is not a cause of failures."""
    return Finding(
        code=code, severity=severity, headline=one_line(headline), detail=detail, suggestion=suggestion, root=False,
        counts=Counts(tasks=tasks, nodes=nodes), confidence="likely", first_ms=first_ms, last_ms=last_ms,
        evidence=evidence or [],
    )  # fmt: skip


def total_ms(times: TimeTotals) -> int:
    """Return the time of all tasks together, from creation to end."""
    waiting = times.waiting_args_ms + times.waiting_node_ms + times.fetching_args_ms + times.waiting_actor_ms
    return waiting + times.starting_ms + times.running_ms


def cluster_cpus(facts: SessionFacts) -> float:
    return sum(node.resources.get("CPU", 0.0) for node in facts.nodes)


def longest_span_ms(facts: SessionFacts) -> int:
    """Return the longest time that the tasks of any function took together, from the first start to the last end."""
    return max((each.last_ms - each.first_ms for each in facts.functions), default=0)


def example_function(**more: object) -> FunctionTimes:
    """Return the times of a function, for examples."""
    values: dict[str, object] = {
        "job_id": "01000000", "function": "train", "count": 20, "total_ms": 20_000, "median_ms": 1_000.0,
        "mean_ms": 1_000.0, "deviation_ms": 50.0, "max_ms": 1_100, "p95_ms": 1_050.0, "first_ms": 1_800_000_000_000,
        "last_ms": 1_800_000_010_000, "slowest_task_id": "ab" * 24,
    }  # fmt: skip
    return FunctionTimes(**{**values, **more})  # type: ignore[arg-type]
