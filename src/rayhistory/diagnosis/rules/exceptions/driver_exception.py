"""Drivers that failed by themselves: with an exception or an exit code."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import frame_place, one_line
from rayhistory.diagnosis.rules.exceptions.entrypoint_errors import entrypoint_error, last_output_line
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, raised_in, session_with_driver
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import own_output

_LAST_LINES = 30
_MAX_FUNCTIONS = 3
_TASK_FRAME = re.compile(r"\bray::[\w.<>]+\(")
"""The first line of a task's or actor's part of a traceback."""


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    job = failure.job
    if job is None or job.status != "FAILED":
        return None
    if found := match_exception(failure, lambda raised, text: True):
        return found
    if job.exit_code is None and "exit code" not in job.message:
        return None
    lines = "\n".join(own_output(failure.text).strip().splitlines()[-_LAST_LINES:])
    return Match(group=failure.id, evidence=(Evidence(kind="job", id=job.id, text=lines, at_ms=failure.at_ms),))


def _describe(group: Group, facts: SessionFacts) -> Words:
    job, raised = group.first.job, raised_in(group.first)
    name = f"The driver of job {group.first.id}"
    if raised is None:
        return _exit_words(name, group.first.text, job.exit_code if job else None)
    place = frame_place(raised.frame)
    if raised.short_type == "GetTimeoutError" and (open_tasks := _open_functions(group.first.job_id, facts)):
        return Words(
            headline=one_line(f"{name} gave up waiting for {open_tasks}: {raised}{f' ({place})' if place else ''}"),
            detail=f"When the timeout of ray.get() expired, these had started but not finished: {open_tasks}.",
            suggestion="Find out why they take so long: see their logs, and where time went. Or use a longer timeout.",
        )
    return Words(
        headline=one_line(f"{name} raised {raised}{f' ({place})' if place else ''}"),
        detail="A task or actor raised the exception first, but its failure was not recorded."
        if _TASK_FRAME.search(group.first.text)
        else "The driver itself raised the exception: no task failed with it.",
        suggestion="See the traceback in the evidence.",
    )


def _open_functions(job_id: str, facts: SessionFacts) -> str:
    """Return the functions that ran when the driver of a job exited."""
    groups = [group for group in facts.failures.groups if group.job_id == job_id and group.started_ms is not None
              and group.error_type == "WORKER_DIED" and not group.retried]  # fmt: skip
    return ", ".join(dict.fromkeys(group.function for group in groups[:_MAX_FUNCTIONS]))


def _exit_words(name: str, text: str, code: int | None) -> Words:
    """Describe a driver that failed without an exception."""
    last = last_output_line(text)
    if error := entrypoint_error(text, code):
        return Words(headline=one_line(f"{name} failed: {error.problem}"), detail=f"It exited with code {code}.",
                     suggestion=error.suggestion)  # fmt: skip
    return Words(
        headline=one_line(f"{name} exited with code {code}, without an exception"),
        detail=one_line(f"Its last output line: {last}") if last else "It printed nothing.",
        suggestion="Find where the program exits with this code.",
    )


RULE = FailureRule(
    code="driver_exception",
    meaning=(
        "The driver program failed: it raised an exception outside of tasks and actors, or exited with an error code."
    ),
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_driver("KeyError: 'learning_rate'"),
        headline="The driver of job nightly raised KeyError: 'learning_rate' (train.py:9 in main)",
    ),
)
