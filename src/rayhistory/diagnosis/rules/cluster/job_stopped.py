"""Jobs that a user stopped."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, utc
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    job = failure.job
    if job is None or job.status != "STOPPED":
        return None
    return Match(group=job.id, evidence=(Evidence(kind="job", id=job.id, text=one_line(job.message, 300),
                                                  at_ms=job.end_ms),))  # fmt: skip


def _describe(group: Group, facts: SessionFacts) -> Words:
    return Words(
        headline=one_line(f"Job {group.first.id} was stopped by a user at {utc(group.first.at_ms)}"),
        detail="Somebody ran `ray job stop`, called the Jobs API, or deleted the RayJob.",
    )


RULE = FailureRule(
    code="job_stopped",
    severity="warning",
    meaning="A user stopped the job.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(jobs=[failed_job("", status="STOPPED", message="Job was intentionally stopped.")]),
        headline="Job nightly was stopped by a user at 2027-01-15 08:00:02 UTC",
    ),
)
