"""Runtime environments that could not be set up."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.cluster.reported import describe_reported, match_reported, reported_example
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_ERRORS = ("RUNTIME_ENV_SETUP_FAILED", "RUNTIME_ENV_SETUP_FAILURE")
_TEXT = re.compile(
    r"(?:ray\.exceptions\.)?RuntimeEnvSetupError[^\n]{0,200}|"
    r"Failed to set ?up runtime environment[^\n]{0,200}|"
    r"Could not create the actor because its associated runtime env failed[^\n]{0,200}|"
    r"ERROR: No matching distribution found for [^\n]{1,100}"
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_reported(failure, _ERRORS, _TEXT)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_reported(
        group,
        "did not start because its runtime environment could not be set up",
        "See the installer's output in runtime_env_setup-*.log on the node. Check package names and versions, and "
        "that the node can reach the package index.",
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
