"""CUDA errors."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_task, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import RaisedException


def _applies(raised: RaisedException, text: str) -> bool:
    return "CUDA error" in str(raised) or "CUDNN_STATUS" in str(raised) or "CUBLAS_STATUS" in str(raised)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_exception(failure, _applies)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return words(
        group,
        "failed with a CUDA error",
        (
            "Set CUDA_LAUNCH_BLOCKING=1 to get the line that fails. If only one node has the error, look for Xid "
            "errors of its GPU."
        ),
    )


RULE = FailureRule(
    code="cuda_error",
    meaning="A CUDA kernel or the GPU driver failed.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_task(
            'User exception:\n  File "/app/train.py", line 8, in train\n    loss.backward()\n'
            "RuntimeError: CUDA error: device-side assert triggered"
        ),
        headline="Task train failed with a CUDA error: RuntimeError: CUDA error: device-side assert triggered "
        "(train.py:8 in train)",
    ),
)
