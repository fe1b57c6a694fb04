"""Workers that a signal from outside killed."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, size
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import (
    dead_worker,
    exit_evidence,
    function_of,
    last_words,
    log_evidence,
    process_name,
)
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, SessionFacts, WorkerFacts

_NEAR_MS = 60_000
_ENOUGH_FREE = 0.90
_SIGTERM = "receives a SIGTERM"


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    """Match a process that was gone at once, said nothing, and had memory: only a signal does that."""
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None or worker.exit_type != "SYSTEM_ERROR":
        return None
    group = f"{failure.job_id} {function_of(failure, facts)}"
    if _SIGTERM in worker.exit_detail:
        return Match(group=group, evidence=(exit_evidence(worker),), cause="it received SIGTERM")
    if not last_words(worker, facts) and worker.stderr is None:
        return None
    sample = _memory_near(worker, facts)
    if sample is None or sample.share > _ENOUGH_FREE:
        return None
    memory = Evidence(kind="metric", id=worker.node_id or "", at_ms=sample.at_ms,
                      text=f"node memory {size(sample.used)} of {size(sample.total)}")  # fmt: skip
    return Match(
        group=group,
        confidence="likely",
        evidence=(exit_evidence(worker), log_evidence(worker, facts), memory),
        cause=f"{sample.share:.0%} of the node's memory was in use",
    )


def _memory_near(worker: WorkerFacts, facts: SessionFacts) -> MemorySample | None:
    samples = facts.samples.get(worker.node_id or "", NodeSamples())
    series = samples.cgroup_memory or samples.memory
    near = [each for each in series if worker.end_ms and abs(worker.end_ms - each.at_ms) <= _NEAR_MS]
    return max(near, key=lambda each: each.share, default=None)


def _describe(group: Group, facts: SessionFacts) -> Words:
    if group.match.confidence == "certain":
        return Words(
            headline=one_line(f"{process_name(group, facts)} was killed by SIGTERM"),
            suggestion="Look for what ends processes on that node: an operator, a watchdog, the shutdown of the node.",
        )
    return Words(
        headline=one_line(f"{process_name(group, facts)} was gone at once without a crash report: it was killed by a "
                          "signal (kill -9), or called os._exit()"),
        detail=f"It wrote no stack and no exit message, and memory was not the cause: {group.match.cause}.",
        suggestion="Look for what kills processes on that node: an operator, a watchdog, a limit of the container "
        "runtime; or for os._exit() in the code of the task.",
    )  # fmt: skip


def _example() -> SessionFacts:
    worker = dead_example_worker(stderr=":job_id:01000000\n:task_name:train\n")
    gib = 1 << 30
    return death_facts(
        worker, samples={worker.node_id: NodeSamples(memory=[MemorySample(1_800_000_000_000, 2 * gib, 8 * gib)])}
    )


RULE = FailureRule(
    code="worker_killed",
    meaning="A worker was killed by a signal from outside, or ended itself without a trace, and memory was not the "
    "cause.",
    needs=("logs", "metrics"),
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline="Worker 4376 on 10.0.0.7 (task train) was gone at once without a crash report: it was killed by a "
        "signal (kill -9), or called os._exit()",
    ),
)
