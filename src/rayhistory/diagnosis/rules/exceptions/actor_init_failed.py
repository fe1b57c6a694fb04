"""Actors whose constructor raised."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task, match_exception, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.failure_groups import FailureGroups


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    is_creation = failure.tasks is not None and failure.tasks.type == "ACTOR_CREATION_TASK"
    is_actor = failure.actor is not None and failure.actor.cause == "creation_task_failure_context"
    if not is_creation and not is_actor:
        return None
    found = match_exception(failure, lambda raised, text: True)
    return found or (Match(group=f"{failure.job_id} {failure.function}") if is_actor else None)


def _describe(group: Group, facts: SessionFacts) -> Words:
    suggestion = "Fix the constructor. Until then, every call of the actor fails with this exception."
    return words(group, "could not be created because its __init__ raised", suggestion)


RULE = FailureRule(
    code="actor_init_failed",
    meaning="The constructor of an actor raised an exception, so every call of the actor failed.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(
            jobs=[
                failed_job(
                    "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
                    'ray::Model.__init__()\n  File "/app/model.py", line 21, in __init__\n    load(path)\n'
                    "FileNotFoundError: no checkpoint at /models/latest\n"
                )
            ],
            failures=FailureGroups(
                [
                    failed_task(
                        'User exception:\n  File "/app/model.py", line 21, in __init__\n    load(path)\n'
                        "FileNotFoundError: no checkpoint at /models/latest",
                        function="Model.__init__", type="ACTOR_CREATION_TASK", actor_id="aa" * 16,
                    )
                ], 1, 1,
            ),
        ),
        headline="Actor Model could not be created because its __init__ raised: FileNotFoundError: no checkpoint at "
                 "/models/latest (model.py:21 in __init__)",
    ),
)  # fmt: skip
