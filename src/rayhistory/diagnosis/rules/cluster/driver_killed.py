"""Drivers that a signal killed."""

import re
import signal

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, utc
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import JobFacts, SessionFacts
from rayhistory.diagnosis.tracebacks import own_output

_EXIT_CODE = re.compile(r"exit code (-?\d+)")
_SUPERVISOR_ERRORS = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")
_OWN_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_SHELL_BASE = 128


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    job = failure.job
    if job is None or job.status != "FAILED":
        return None
    number = _signal(job)
    if number is None and job.error_type not in _SUPERVISOR_ERRORS:
        return None
    if number is not None and number in _OWN_CRASHES:
        return None
    lines = "\n".join(own_output(failure.text).strip().splitlines()[-15:])
    evidence = Evidence(kind="job", id=job.id, text=lines, at_ms=job.end_ms)
    cause = f"signal {number} ({_name(number)})" if number is not None else one_line(job.message, 160)
    return Match(group=job.id, evidence=(evidence,), cause=cause)


def _signal(job: JobFacts) -> int | None:
    """Return the signal that ended the entrypoint, from the exit code of the entrypoint or of its shell."""
    code = job.exit_code
    if code is None and (found := _EXIT_CODE.search(job.message)):
        code = int(found[1])
    if code is None:
        return None
    number = -code if code < 0 else code - _SHELL_BASE
    return number if 0 < number <= signal.SIGRTMIN else None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _describe(group: Group, facts: SessionFacts) -> Words:
    return Words(
        headline=one_line(f"The driver of job {group.first.id} was killed at {utc(group.first.at_ms)}: "
                          f"{group.match.cause}"),
        detail="The driver did not exit by itself.",
        suggestion=(
            "If nobody killed it on purpose, check the memory of its node and container. The driver's memory counts "
            "towards the container's limit."
        ),
    )  # fmt: skip


RULE = FailureRule(
    code="driver_killed",
    meaning="A signal killed the driver process of a job, or the job's supervisor actor died.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(jobs=[failed_job("", exit_code=-9, message="failed with exit code -9")]),
        headline="The driver of job nightly was killed at 2027-01-15 08:00:02 UTC: signal 9 (SIGKILL)",
    ),
)
