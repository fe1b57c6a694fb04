"""Exceptions that the code of a task or an actor raised."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_task, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.kind not in ("tasks", "actor"):
        return None
    found = match_exception(failure, lambda raised, text: True)
    if found is None and failure.error_type == "TASK_EXECUTION_EXCEPTION":
        return Match(group=f"{failure.job_id} {failure.function}", cause="its message could not be read")
    return found


def _describe(group: Group, facts: SessionFacts) -> Words:
    return words(group, "raised an exception", "See the traceback of the first failure in the evidence.")


RULE = FailureRule(
    code="user_exception",
    meaning="A task or an actor method raised an exception that was not caught.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_task(
            'User exception:\n  File "/app/train.py", line 13, in train\n    raise ValueError(path)\n'
            "ValueError: no records in shard-0003.parquet"
        ),
        headline="Task train raised an exception: ValueError: no records in shard-0003.parquet (train.py:13 in train)",
    ),
)
