"""Runtime environments that could not be set up."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.rules.cluster.reported import describe_reported, match_reported, reported_example
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import RaisedException, last_traceback, own_output, parse_exception

_ERRORS = ("RUNTIME_ENV_SETUP_FAILED", "RUNTIME_ENV_SETUP_FAILURE")
_TEXT = re.compile(
    r"(?:ray\.exceptions\.)?RuntimeEnvSetupError[^\n]{0,200}|"
    r"Failed to set ?up runtime environment[^\n]{0,200}|"
    r"Could not create the actor because its associated runtime env failed[^\n]{0,200}|"
    r"ERROR: No matching distribution found for [^\n]{1,100}"
)


_SETUP_FRAME = re.compile(r'^ {2}File "[^"\n]*/ray/_private/runtime_env/[^"\n]*", line \d+, in [^\n]*$', re.MULTILINE)
_LAST_CHARS = 1_500


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.kind == "job" and (raised := _raised_by_setup(failure)):
        text = last_traceback(own_output(failure.text))[-4_000:]
        evidence = Evidence(kind="job", id=failure.id, text=text, at_ms=failure.at_ms)
        return Match(group=failure.job_id, evidence=(evidence,), cause=str(raised))
    return match_reported(failure, _ERRORS, _TEXT)


def _raised_by_setup(failure: Failure) -> RaisedException | None:
    """Return the exception of a driver, if Ray raised it while it prepared the runtime environment."""
    text = last_traceback(own_output(failure.text))
    frames = text.rpartition('\n  File "')
    last = "".join(frames[1:])[-_LAST_CHARS:]
    return parse_exception(text) if _SETUP_FRAME.search(last) else None


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_reported(
        group,
        "did not start because its runtime environment could not be set up",
        "Check package names and versions, paths and URIs in runtime_env, and that the node can reach them. The "
        "installer's output is in runtime_env_setup-*.log on the node.",
    )


RULE = FailureRule(
    code="runtime_env_failed",
    meaning=(
        "A runtime environment could not be set up: a package could not be installed, or a file could not be "
        "downloaded."
    ),
    match=_match,
    describe=_describe,
    example=reported_example(
        "RUNTIME_ENV_SETUP_FAILED",
        "Failed to set up runtime environment.",
        "Task train did not start because its runtime environment could not be set up: Failed to set up runtime "
        "environment.",
    ),
)
