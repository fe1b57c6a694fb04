"""Worker processes that could not be started."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.rules.exceptions.raised import failed_task
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import plain_text
from rayhistory.index.query.failure_groups import FailureGroups

_NOT_STARTED = re.compile(
    r"worker(?:\(s\)| process(?:es)?)? (?:failed to start|failed to register|have not registered)[^\n]{0,200}|"
    r"failed to start(?:up)? (?:a |the )?worker[^\n]{0,200}|"
    r"WORKER_STARTUP_FAILED|workers? failed to startup[^\n]{0,100}",
    re.IGNORECASE,
)


_NOT_EXECUTABLE = re.compile(
    r"^\(raylet\) (?:\S+: )*(?:line \d+: )?"
    r"(/\S+: (?:No such file or directory|Permission denied|cannot execute[^\n]{0,80}))$",
    re.MULTILINE,
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.kind == "waiting":
        return _match_waiting(failure, facts)
    if failure.kind not in ("tasks", "actor", "worker", "job"):
        return None
    found = _NOT_STARTED.search(failure.text[-20_000:])
    if found is None and failure.error_type != "WORKER_STARTUP_FAILED":
        return None
    text = found[0] if found else failure.text
    evidence = failure.evidence(one_line(failure.text, 1_000))
    return Match(group=failure.job_id, evidence=(evidence,), cause=text)


def _match_waiting(failure: Failure, facts: SessionFacts) -> Match | None:
    """Match tasks that waited for a worker whose program cannot be executed. The raylet reports this to the driver."""
    job = facts.job(failure.job_id)
    found = _NOT_EXECUTABLE.search(plain_text(job.output or job.message)) if job else None
    if found is None:
        return None
    evidence = Evidence(kind="job", id=job.id if job else "", text=found[0], at_ms=failure.at_ms)
    return Match(group=failure.job_id, evidence=(evidence,), cause=found[1])


def _describe(group: Group, facts: SessionFacts) -> Words:
    return Words(
        headline=one_line(f"Worker processes could not be started: {group.match.cause}"),
        suggestion="See raylet.out and runtime_env_setup-*.log on the node. Often the Python interpreter of the "
        "runtime environment is missing, or the node has too many processes.",
    )


RULE = FailureRule(
    code="worker_startup_failed",
    meaning="Ray could not start worker processes on a node.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(
            failures=FailureGroups([failed_task("Worker failed to register in time", error_type="WORKER_DIED")], 1, 1),
        ),
        headline="Worker processes could not be started: Worker failed to register in time",
    ),
)
