"""GPUs without enough memory."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_task, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import RaisedException


def _applies(raised: RaisedException, text: str) -> bool:
    return "CUDA out of memory" in str(raised) or raised.type.endswith("cuda.OutOfMemoryError")


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_exception(failure, _applies)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return words(
        group,
        "ran out of GPU memory",
        "Use a smaller batch size, run fewer tasks per GPU (num_gpus=1), or use a GPU with more memory.",
    )


RULE = FailureRule(
    code="cuda_out_of_memory",
    meaning="A GPU did not have enough memory for an allocation.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_task(
            'User exception:\n  File "/app/train.py", line 8, in train\n    loss.backward()\n'
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
        ),
        headline="Task train ran out of GPU memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB "
        "(train.py:8 in train)",
    ),
)
