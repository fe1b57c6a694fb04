"""The verdict: the finding that explains why a job failed or was stopped, or why the session was lost."""

from rayhistory.diagnosis.explain import Explained
from rayhistory.diagnosis.findings import Verdict
from rayhistory.diagnosis.session_facts import RUNNING, SessionFacts

_EXPLAINS_OPEN_JOBS = ("infeasible_request", "pending_for_capacity")
"""Findings that can explain a job that was still running at the end of its session, because it may have waited forever.
"""


def rank(explained: list[Explained], facts: SessionFacts) -> list[Explained]:
    """Sort findings: first the cause of the verdict, then a lost session, then critical findings.

    Among equal ones, those with more failed jobs come first, then those with more failures.
    """
    return sorted(explained, key=lambda each: _key(each, facts), reverse=True)


def _key(each: Explained, facts: SessionFacts) -> tuple[bool, bool, bool, int, int]:
    finding = each.finding
    return (
        explains_verdict(each, facts),
        any(failure.kind == "session" for failure in each.members),
        finding.severity == "critical",
        finding.counts.jobs,
        finding.counts.total,
    )


def explains_verdict(each: Explained, facts: SessionFacts) -> bool:
    """Return True for the cause of a failed or stopped job, or of a loss that interrupted a job."""
    if any(failure.kind == "job" for failure in each.members):
        return True
    if any(failure.kind == "session" for failure in each.members):
        return not facts.jobs or any(job.inferred for job in facts.jobs)
    return each.finding.code in _EXPLAINS_OPEN_JOBS and any(
        job.job_id in {failure.job_id for failure in each.members} and _is_open(job.status, inferred=job.inferred)
        for job in facts.jobs
    )


def _is_open(status: str, *, inferred: bool) -> bool:
    return inferred or status in ("RUNNING", "PENDING")


def find_verdict(ranked: list[Explained], facts: SessionFacts) -> Verdict | None:
    """Return the verdict; None if every job succeeded or still runs."""
    if not ranked or not explains_verdict(ranked[0], facts):
        return None
    if facts.state == RUNNING and not any(job.status in ("FAILED", "STOPPED") for job in facts.jobs):
        return None
    finding, confidence = ranked[0].finding, ranked[0].finding.confidence
    if ranked[0].by_time and confidence == "certain":
        confidence = "likely"
    return Verdict(code=finding.code, headline=finding.headline, confidence=confidence, finding=0)
