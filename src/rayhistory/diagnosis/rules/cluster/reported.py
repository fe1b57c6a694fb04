"""Helpers for rules about errors that Ray names: in the error type of a task, or in a text."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.rule import Example, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import own_output
from rayhistory.index.query.failure_groups import FailureGroups

_NOUNS = {"tasks": "Task", "actor": "Actor", "job": "Job"}


def match_reported(failure: Failure, errors: tuple[str, ...], pattern: re.Pattern[str]) -> Match | None:
    if failure.kind not in _NOUNS:
        return None
    text = own_output(failure.text)[-20_000:]
    found = pattern.search(text)
    if found is None and failure.error_type not in errors:
        return None
    return Match(group=f"{failure.job_id} {failure.function}", evidence=(failure.evidence(text[-4_000:]),),
                 cause=found[0] if found else text)  # fmt: skip


def describe_reported(group: Group, problem: str, suggestion: str) -> Words:
    first = group.first
    name = f"{_NOUNS[first.kind]} {first.id if first.kind == 'job' else first.function}"
    return Words(headline=one_line(f"{name} {problem}: {group.match.cause}"), suggestion=suggestion)


def reported_example(error_type: str, message: str, headline: str) -> Example:
    """Return an example of a rule: a session with a failed task, whose job succeeded nevertheless."""
    job = failed_job("", status="SUCCEEDED", exit_code=0, error_type=None)
    facts = SessionFacts(jobs=[job], failures=FailureGroups([failed_task(message, error_type=error_type)], 1, 1))
    return Example(facts=facts, headline=headline)
