"""Workers that were killed by a signal."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import dead_worker, exit_evidence, function_of, process_name
from rayhistory.diagnosis.rules.processes.silent_death import silent_death
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, SessionFacts

_SIGTERM = "receives a SIGTERM"
_KILLERS = "Find out what kills processes on that node: a person, a watchdog, or a limit of the container runtime"


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    """Match a process that died without output while memory was free."""
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None or worker.exit_type != "SYSTEM_ERROR":
        return None
    group = f"{failure.job_id} {function_of(failure, facts)}"
    if _SIGTERM in worker.exit_detail:
        return Match(group=group, evidence=(exit_evidence(worker),), cause="SIGTERM")
    silent = silent_death(failure, facts)
    if silent is None or silent.by == "itself":
        return None
    return Match(group=f"{group} {silent.by}", confidence=silent.confidence, evidence=silent.evidence,
                 cause=silent.cause)  # fmt: skip


def _describe(group: Group, facts: SessionFacts) -> Words:
    name, match = process_name(group, facts), group.match
    if match.confidence == "certain":
        return Words(headline=one_line(f"{name} was killed by {match.cause}"), suggestion=f"{_KILLERS}.")
    if match.confidence == "likely":
        return Words(
            headline=one_line(f"{name} was killed by a signal (kill -9): {match.cause}"),
            detail="The process died without output, and memory was not the cause.",
            suggestion=f"{_KILLERS}.",
        )
    it, process = ("them", "they") if len(group.roots) > 1 else ("it", "it")
    return Words(
        headline=one_line(f"{name} died without a crash report: either a signal (kill -9) killed {it}, or {process} "
                          "called os._exit()"),
        detail=f"There is no stack trace and no exit message, memory was not the cause, and {match.cause}. Ray does "
               "not record which of the two happened.",
        suggestion=f"{_KILLERS}. Also look for os._exit() in the task's code.",
    )  # fmt: skip


def _example() -> SessionFacts:
    worker = dead_example_worker(stderr=":job_id:01000000\n:task_name:train\n")
    gib = 1 << 30
    return death_facts(
        worker, samples={worker.node_id: NodeSamples(memory=[MemorySample(1_800_000_000_000, 2 * gib, 8 * gib)])}
    )


RULE = FailureRule(
    code="worker_killed",
    meaning="A signal from another process killed a worker, and memory was not the cause. If os._exit() is equally "
    "likely, the finding names both causes.",
    needs=("logs", "metrics"),
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline="Worker 4376 on 10.0.0.7 (task train) died without a crash report: either a signal (kill -9) killed "
        "it, or it called os._exit()",
    ),
)
