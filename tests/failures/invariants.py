"""Invariants of every diagnosis: each final failure that was not cleaned up is in exactly one finding."""

from collections import Counter
from collections.abc import Iterator

from rayhistory.diagnosis.explain import explain_failures
from rayhistory.diagnosis.failures import CLOCK_TOLERANCE_MS, Failure, find_failures, job_ends
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.whole_messages import with_whole_messages

_ENDED_WITH_OTHERS = ("WORKER_DIED", "ACTOR_DIED")


def violations(facts: SessionFacts, found: Diagnosis) -> list[str]:
    """Return the failures that belong to several findings, or to none although nothing says why."""
    facts = with_whole_messages(facts)
    members = Counter(failure.key for each in explain_failures(facts) for failure in each.members)
    several = [f"{kind} {id_} is in {count} findings" for (kind, id_), count in members.items() if count > 1]
    left_out = [failure for failure in find_failures(facts) if failure.key not in members]
    return [*several, *_without_finding(left_out, facts), *_miscounted(facts, found)]


def _without_finding(left_out: list[Failure], facts: SessionFacts) -> Iterator[str]:
    ends = job_ends(facts)
    for failure in left_out:
        if failure.kind == "waiting" or _ended_with_others(failure, facts):
            continue
        end = ends.get(failure.job_id)
        late = end is not None and failure.at_ms is not None and failure.at_ms >= end - CLOCK_TOLERANCE_MS
        if failure.kind not in ("tasks", "actor") or not late:
            yield f"{failure.kind} {failure.id} ({failure.error_type} {failure.function}) is in no finding"


def _ended_with_others(failure: Failure, facts: SessionFacts) -> bool:
    """Return True for tasks and actors whose worker or owner ended on request."""
    if failure.actor:
        return failure.actor.reason == "OWNER_DIED"
    worker = facts.worker(failure.tasks.worker_id) if failure.tasks else None
    on_request = worker is not None and worker.exit_type.startswith("INTENDED_")
    return failure.error_type in _ENDED_WITH_OTHERS and on_request


def _miscounted(facts: SessionFacts, found: Diagnosis) -> Iterator[str]:
    failed = sum(job.status in ("FAILED", "STOPPED") and not job.inferred for job in facts.jobs)
    counted = sum(finding.counts.jobs for finding in found.findings)
    if counted != failed:
        yield f"{failed} failed jobs are counted as {counted}"
