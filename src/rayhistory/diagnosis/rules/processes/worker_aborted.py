"""Processes that aborted."""

import re
import signal

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.processes.crash import crash_example, describe_crash, match_crash
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_SIGNS = re.compile(
    r"\*\*\* SIGABRT received|Fatal Python error: Aborted|terminate called (?:after throwing|without an active)|"
    r"Check failed: "
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_crash(failure, facts, _SIGNS, (signal.SIGABRT,))


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_crash(group, facts, "aborted (SIGABRT)")


RULE = FailureRule(
    code="worker_aborted",
    meaning="A worker aborted (SIGABRT), usually because a check in native code failed.",
    needs=("logs",),
    match=_match,
    describe=_describe,
    example=crash_example(
        "Fatal Python error: Aborted",
        "Worker 4376 on 10.0.0.7 (task train) aborted (SIGABRT) in model.py:12 in forward",
    ),
)
