"""NCCL operations that timed out."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_task, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import RaisedException

_TIMEOUT = re.compile(r"collective operation timeout|NCCL\b.{0,200}(?:timeout|timed out)", re.DOTALL | re.IGNORECASE)


def _applies(raised: RaisedException, text: str) -> bool:
    return _TIMEOUT.search(str(raised)) is not None


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_exception(failure, _applies)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return words(
        group,
        "timed out in an NCCL operation",
        "Find the rank that did not join the operation: it failed, is slower, or has a different number of batches. "
        "NCCL_DEBUG=INFO logs it.",
    )


RULE = FailureRule(
    code="nccl_timeout",
    meaning="An NCCL collective operation timed out because a rank failed, hung or was too slow.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_task(
            'User exception:\n  File "/app/train.py", line 8, in train\n    dist.all_reduce(x)\n'
            "RuntimeError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)"
        ),
        headline="Task train timed out in an NCCL operation: RuntimeError: [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(OpType=ALLREDUCE) (train.py:8 in train)",
    ),
)
