"""Processes that crashed with a segmentation fault."""

import re
import signal

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.processes.crash import crash_example, describe_crash, match_crash
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_SIGNS = re.compile(
    r"\*\*\* SIG(?:SEGV|BUS|ILL|FPE) received|"
    r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|Floating[- ]point exception)"
)
_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_crash(failure, facts, _SIGNS, _SIGNALS)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_crash(group, facts, "crashed with a segmentation fault")


RULE = FailureRule(
    code="worker_segfault",
    meaning="A worker crashed in native code (SIGSEGV, SIGBUS, SIGILL or SIGFPE).",
    needs=("logs",),
    match=_match,
    describe=_describe,
    example=crash_example(
        "Fatal Python error: Segmentation fault", "Worker 4376 on 10.0.0.7 (task train) crashed with a segmentation "
        "fault in model.py:12 in forward"
    ),
)  # fmt: skip
