"""Exceptions that the code of a task or an actor raised."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.ended_actors import describe_ended_actor, match_ended_actor
from rayhistory.diagnosis.rules.exceptions.pools import describe_pool, match_pool
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_task, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import WRAPPERS


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.kind == "job":
        return match_pool(failure)
    if failure.kind not in ("tasks", "actor"):
        return None
    if ended := match_ended_actor(failure):
        return ended
    found = match_exception(failure, lambda raised, text: raised.short_type not in WRAPPERS)
    found = found or match_exception(failure, lambda raised, text: True)
    if found is None and failure.error_type == "TASK_EXECUTION_EXCEPTION":
        return Match(group=f"{failure.job_id} {failure.function}", cause="its message could not be read")
    return found


def _describe(group: Group, facts: SessionFacts) -> Words:
    if match_ended_actor(group.first):
        return describe_ended_actor(group)
    if group.first.kind == "job":
        return describe_pool(group)
    return words(group, "raised an exception", "See the traceback of the first failure in the evidence.")


RULE = FailureRule(
    code="user_exception",
    meaning="A task or an actor method raised an exception that was not caught; or calls of an actor failed because "
    "the program itself had ended the actor, as with ray.kill().",
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
